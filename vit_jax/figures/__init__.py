"""The pictures of a run: curves, confusion, attention, worst errors."""
