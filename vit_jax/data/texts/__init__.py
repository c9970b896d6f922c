"""Pairs of texts: from files or made up, split, encoded, in batches of similar lengths."""
