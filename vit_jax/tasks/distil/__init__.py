"""Image classification learnt from labels and from a teacher at once."""
