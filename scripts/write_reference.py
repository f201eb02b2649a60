"""Writes docs/reference from the code: commands, keys of recipe and policy, the report's schema, errors, precisions.

    python scripts/write_reference.py

Run it after a change to any of these; a test fails while a page is not what this writes.
"""

from pathlib import Path

import checkout  # noqa: F401

from support.reference_pages import PAGES

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
