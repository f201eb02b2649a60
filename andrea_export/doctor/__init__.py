"""What this machine can do, step by step."""
