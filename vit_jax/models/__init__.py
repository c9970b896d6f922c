"""The networks. NAME_config.py says what a network is, free of jax; NAME.py computes it.

To read one, begin with vit.py; attention.py and layers.py hold what all networks share.
"""
