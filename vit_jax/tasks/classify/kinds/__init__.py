"""What networks of images are trained for, a file for each kind: a class, a set of labels, numbers."""
