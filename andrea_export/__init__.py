"""andrea-export: takes ANDREA from its PyTorch reference to something that ships, and proves that it is the same model.

Importing this package imports no backend; each is imported where it is used.
"""

__version__ = "0.1.0"
