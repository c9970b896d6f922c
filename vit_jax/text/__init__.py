"""Sentences as ids, and back.

Read tokenizer.py first: the interface, and the ids with a meaning of their own.
"""
