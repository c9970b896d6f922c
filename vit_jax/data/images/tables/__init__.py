"""Tables of labels: CSV files and JSON Lines that say what each image shows."""
