"""Translation: sentences to sentences."""
