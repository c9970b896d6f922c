"""Finished runs, side by side or as a page for a browser."""
