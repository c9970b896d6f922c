"""Where the rows of metrics go besides metrics.jsonl."""
