"""What predictions are worth and how far they can be trusted, in numpy and scikit-learn: see result.py."""
