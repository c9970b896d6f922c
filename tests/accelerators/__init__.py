"""Steps compiled by the real compilers of GPUs and TPUs, which need neither: `make test-accelerators`."""
