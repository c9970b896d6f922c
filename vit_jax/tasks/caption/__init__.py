"""Captions: images, or vectors that another network made of them, to sentences."""
