"""What networks are trained for. A folder holds all of a task.

spec.py says what its runs state (free of jax), learn.py how it learns, use.py how a trained network is used.
"""
