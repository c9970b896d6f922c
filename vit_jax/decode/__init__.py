"""The search for an answer, token by token, with any network that gives the logits of the next token.

Read contract.py, rules.py, single.py, beam.py and search.py; buckets.py is for many inputs of different lengths.
"""
