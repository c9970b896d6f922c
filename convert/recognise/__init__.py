"""Finds the weights in a file, their layout and their config, each from a source that is known; once a file."""
