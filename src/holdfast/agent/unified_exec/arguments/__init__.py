"""Arguments of the tools: schemas for a model, and decoding what it writes."""
