"""``python -m andrea_export``: the command line tool, where its script is not on the PATH."""

from andrea_export.cli import main

if __name__ == "__main__":
    main()
