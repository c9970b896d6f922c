"""Training: a run's config to a folder with its checkpoints, figures and results.

Read preflight (what is refused at once), setup (what config and data determine), resume (the state to go on from) and
session (all of it together), then loop, with stopping (what clocks and signals decide), then finish.
"""
