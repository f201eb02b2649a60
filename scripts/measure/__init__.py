"""What the measuring scripts share: conditions, commands, and how results are written."""
