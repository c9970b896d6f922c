"""Files of tensors: each kind opens to named lazy tensors, and writes from an iterator."""
