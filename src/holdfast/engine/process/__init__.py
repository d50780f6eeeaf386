"""The engine: starts processes, holds their terminals and pipes, and keeps what they wrote."""
