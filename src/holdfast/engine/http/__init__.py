"""HTTP calls made by this machine; imported with the first one."""
