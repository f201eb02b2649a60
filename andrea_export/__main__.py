"""The tool's door: ``andrea-export``, and ``python -m andrea_export`` where that script is not on the PATH."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The command line. A Ctrl-C while its modules are still imported does not end in a traceback either."""
    try:
        from andrea_export.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
