"""What gpu_parts_archive.py is made of."""
