"""What this machine can do, and what brings the rest. Needs the standard library alone."""
