"""What every room needs and that needs none: errors, names, types, precisions, hashes, progress."""
