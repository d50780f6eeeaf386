"""What people do with a place: run a command, or start one that goes on."""
