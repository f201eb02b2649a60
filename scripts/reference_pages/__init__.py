"""What write_reference.py is made of."""
