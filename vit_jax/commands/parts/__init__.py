"""A job in parts: any number of workers compute it together, and nobody coordinates them but the store."""
