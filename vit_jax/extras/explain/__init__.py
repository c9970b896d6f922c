"""Which parts of an input counted for an output, and how far that can be trusted."""
