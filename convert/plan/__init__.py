"""A conversion before any value is read: the networks that two layouts share, groups of tensors, and the target."""
