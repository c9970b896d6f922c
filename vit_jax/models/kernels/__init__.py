"""Products and attention computed faster than by their plain formulas, where devices can."""
