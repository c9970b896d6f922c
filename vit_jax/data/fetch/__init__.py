"""Sets that are known by name: downloaded, checked and prepared."""
