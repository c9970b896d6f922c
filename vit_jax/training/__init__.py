"""Training: a run's config to a folder with its checkpoints, figures and results.

A run is set up (setup: what is refused at once, and what config and data determine) and resumed (resume: the state to
go on from); `steps_with` in train.py takes one step after the other. Then read session, loop, stopping (what clocks and
signals decide) and finish.
"""
