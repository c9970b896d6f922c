"""Training a run, from its folder and its last checkpoint to the figures.

A run becomes a job (job: what is refused at once, and what config and data determine) with a state (state: new, or that
of a checkpoint); `Loop` in loop.py does one step after the other. Then read stopping (what clocks and signals decide),
log, hooks and finish; engine/ is the compiled step.
"""
