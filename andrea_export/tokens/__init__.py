"""Text to token ids and back, and which ids a model can be given."""
