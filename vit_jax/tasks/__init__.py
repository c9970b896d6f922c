"""What a network learns and is used for: the base classes (spec, base), the table of all tasks, and a folder for each.

A task's spec says what a run of it may state and keep, and loads no jax; its `Task` computes. Read spec.py and base.py,
then the folder classify.
"""
