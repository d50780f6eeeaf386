"""Permission profiles: named ones, those in files, and the reading of their entries."""
