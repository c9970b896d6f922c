"""Where prepared sets lie, and copies of what lies in a store."""
