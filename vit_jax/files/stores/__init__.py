"""Objects in a folder or in an object store, behind one interface."""
