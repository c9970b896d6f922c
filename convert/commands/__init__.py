"""What the commands print: the list of layouts, what a file is."""
