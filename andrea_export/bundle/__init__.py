"""A bundle on disk: its files, its manifest, and how it comes to be there whole or not at all."""
