"""A conversion before any value is read: its target, groups of tensors, networks that two layouts share."""
