"""What a run's steps ask of devices that need not be there: memory, bytes, kernels, bounds of time."""
