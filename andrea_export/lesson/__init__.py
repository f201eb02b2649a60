"""The lesson's trace: one token through one block, backends side by side."""
