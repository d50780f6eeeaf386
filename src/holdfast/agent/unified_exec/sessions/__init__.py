"""Commands between their start and the report of their end, and the news about them."""
