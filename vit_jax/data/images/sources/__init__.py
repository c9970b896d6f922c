"""Where images come from: folders, prepared sets, arrays."""
