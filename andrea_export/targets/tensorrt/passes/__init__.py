"""The graph rewrites that make an engine's file."""
