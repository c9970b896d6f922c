"""Which tensors of a file are its weights, of which layout and which config, said by whom: asked once a file."""
