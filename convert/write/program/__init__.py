"""Networks as programs, which hold their weights and run without this package: traced, written, and run again."""
