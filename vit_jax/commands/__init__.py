"""The commands: words of a command line to results."""
