"""The compiled step, the optimizer, and how arrays lie on devices."""
