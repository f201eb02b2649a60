"""The command line: parses, calls the library, renders, returns an exit code. The only part of the package that prints.

One file a command; ``output`` owns stdout and stderr, ``app`` the exit codes. At import it needs typer and the standard
library alone, so ``--help``, ``--version`` and ``doctor`` work where no backend, not even torch, is installed.
"""

from andrea_export.cli.app import app, main

__all__ = ["app", "main"]
