"""Output and input of a process."""
