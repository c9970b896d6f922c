"""Objects in a folder or in an object store, and what is kept in them: runs, and folders of data."""
