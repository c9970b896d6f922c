"""Runs that start from given weights (`init`): the fields that these decide, what does not fit them, and their values.

The weights are a file or a folder of any layout, hf://owner/name, or another run. Headers are enough for all but
`start`, which reads each value once. Read opening, then fitting, then recipes, then again, then start.
"""
