"""The equivalence suite: ours and PyTorch's are the same functions, have the same gradients, and walk the same path in training.

cases.py says what is compared, weights.py with which numbers, sides.py holds both sides, compare.py
the limits. twins.py, torch_nn.py and libraries.py compare forward passes and gradients, slopes.py our
gradients with differences, training.py optimizer steps, losses.py losses and shifts, dropping.py
dropout; sabotage.py proves that each comparison can fail. `python -m tests.parity` prints it all.
"""
