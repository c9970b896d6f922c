"""Positions that act inside attention: rotary, by turning queries and keys, or relative, by a bias of the scores."""
