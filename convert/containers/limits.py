"""Limits on files, which may come from strangers. Readers check them against headers, before they allocate anything."""

HEADER = 16 << 20  # bytes of a header, an index or a JSON file
TENSORS = 50_000  # in one file
RANK = 8  # axes of a tensor
NAME = 512  # characters of a tensor's name
LETTERS = 1 << 19  # characters of all names of weights; the largest networks with their moments have half of it
FOLDERS = 10_000  # in a folder in which weights are looked for
NESTING = 8  # levels of dictionaries and lists
OPCODES = 1_000_000  # of a pickle, and values of a nested file
TENSOR_BYTES = 16 << 30
RATIO, RATIO_FROM = 20, 256 << 20  # how much larger than its compressed bytes a tensor of at least so many bytes may be
