"""Packs wheels into checksummed archive parts for a machine without network, and joins them there.

    gpu_parts_archive.py pack WHEELS OUT NAME     OUT/NAME.tar.xz.000, .001, … and OUT/SHA256SUMS
    gpu_parts_archive.py join PARTS SITE          unpacks each complete group into SITE/NAME, prints that folder

NAME ends in the Python it is for, as ``-cp312``; another Python leaves it out.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_archive.parts import join, pack


def main() -> None:
    """Packs or joins."""
    command, *arguments = sys.argv[1:]
    if command == "pack" and len(arguments) == 3:
        wheels, out, name = Path(arguments[0]), Path(arguments[1]), arguments[2]
        for part in pack(wheels, out, name):
            sys.stdout.write(f"{part} {part.stat().st_size} bytes\n")
    elif command == "join" and len(arguments) == 2:
        for folder in join(Path(arguments[0]), Path(arguments[1])):
            sys.stdout.write(f"{folder}\n")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
