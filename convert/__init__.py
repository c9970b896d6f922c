"""Files <-> networks: names, shapes and bytes. numpy alone; the networks themselves are elsewhere."""
