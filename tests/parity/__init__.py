"""The equivalence suite: our networks and PyTorch's compute the same, have the same gradients and train alike.

The two sides of a comparison, the limits, and the libraries' networks are those of convert/verify; the name maps are
this suite's own. cases.py lists the networks, weights.py has the numbers. twins.py, torch_nn.py and libraries.py
compare forward passes and gradients, slopes.py our gradients with differences, training.py optimizer steps, losses.py
losses and shifts, dropping.py dropout. sabotage.py plants faults in our code and faulty_tables.py in every layout's
table: each has to be caught. `python -m tests.parity` prints it all.
"""
