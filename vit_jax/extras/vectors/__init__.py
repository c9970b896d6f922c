"""Captions of pictures of which another network has made a vector each."""
