"""The lesson: one token through one block, backends side by side."""
