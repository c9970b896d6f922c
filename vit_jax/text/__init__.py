"""Sentences as ids, and back.

Read ids.py (those with a meaning of their own) and tokenizer.py (the interface) first.
"""
