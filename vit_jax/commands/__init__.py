"""The commands: from arguments to results."""
