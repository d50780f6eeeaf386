"""The engine: starts processes, owns their terminals and pipes, and retains their output."""
