"""Broken and malicious files: each ends as it should, in a process of its own with little memory and time."""
