"""Weights in: where they came from, the readers of checkpoint files, the seeded initialisation."""
