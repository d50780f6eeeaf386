"""HTTP calls from where the processes run; imported at the first one."""
