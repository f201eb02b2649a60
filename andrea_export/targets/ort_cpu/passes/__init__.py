"""The graph rewrites that make them."""
