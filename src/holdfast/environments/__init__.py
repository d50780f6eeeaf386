"""Places to run, local and remote, under one name and behind one interface."""
