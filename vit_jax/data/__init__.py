"""From named sources to batches of uint8 images or of ids, in numpy. Heavier libraries are imported when used.

Read base.py (the interface) first. images/, texts/ and captions/ open and split their kind of data, each with the
config of it; items.py is what a source by name gives to each of them.
"""
