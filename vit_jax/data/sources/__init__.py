"""Sources of labelled images: scikit-learn's digits, folders, .npz files, prepared TFDS sets, and arrays from Python.

A source has all labels in memory, and reads one image at a time, as the bytes of a file or as pixels. Decoding,
checking and splitting them is the same for all sources and is done in pixels.py and splits.py.
"""
