"""Training: a run's config to a folder with its checkpoints, figures and results.

A run is set up in three steps: preflight (what is refused at once), setup (what config and data determine) and resume
(the state to go on from); `train_with` in train.py takes them one after the other. Then read session, loop, stopping
(what clocks and signals decide) and finish.
"""
