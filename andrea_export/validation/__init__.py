"""The comparisons a user asks for: a bundle against torch, and any two sources against each other."""
