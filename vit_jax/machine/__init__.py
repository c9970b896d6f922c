"""What this machine has, and how a run is laid on it: devices, memory, several hosts."""
