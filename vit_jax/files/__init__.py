"""Writes and checks files: atomically, under locks, with digests; strict JSON, metrics, and tables for a terminal."""
