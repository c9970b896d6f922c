"""Runs with several values of their fields, chosen and pruned by Optuna."""
