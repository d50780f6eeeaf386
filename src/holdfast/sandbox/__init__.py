"""What a command may touch, and how the kernel is made to keep it to that."""
