"""A plan carried out: weights, runs in training, and the provenance of the written files."""
