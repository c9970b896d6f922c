"""What runs left, as one page for a browser."""
