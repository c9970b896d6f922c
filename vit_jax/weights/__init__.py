"""Trained weights: opened, written, started from. interop.py is the only use of convert."""
