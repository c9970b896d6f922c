"""Images: sources, decoding, splits."""
