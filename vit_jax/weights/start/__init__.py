"""Runs that start from given weights: what these decide, and what does not fit."""
