"""Named runs (presets), in table.py.

A preset is a RunConfig with a help text: what it trains, what it corrects in the notebook that it comes from, and
measured results.
"""
