"""Arguments of the tools: schemas for the model, and decoding its input."""
