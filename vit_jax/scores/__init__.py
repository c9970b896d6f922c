"""What predictions are worth, and how far they can be trusted, in numpy and scipy. Read classes.py first."""
