"""Prediction: what is given to a network, what it answers, and where that goes."""
