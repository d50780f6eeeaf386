"""Files of this machine: the `FileSystem` seam by system calls, off the event loop."""
