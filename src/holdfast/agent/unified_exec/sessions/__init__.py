"""Commands between their start and the report of their end, and events about them."""
