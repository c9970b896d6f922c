"""A plan carried out: weights, runs in training, and what the written files say of themselves."""
