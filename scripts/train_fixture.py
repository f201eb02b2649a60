"""Trains the small ANDREA that tests use where random weights would hide what matters; writes it, its text and its log.

    python scripts/train_fixture.py Rdata.rdb [--output tests/fixtures] [--steps 1000]

The text is Jane Austen's six novels (``support.trained_fixture`` names the package); the first pages of "Persuasion"
are held out, and committed beside the weights so that perplexity can be measured anywhere. The same machine and torch
give the same bytes, another processor may round otherwise. Matrices are stored as fp16, and the held-out perplexity in
the log is that of the stored file.
"""

import argparse
from pathlib import Path

import checkout  # noqa: F401

from support.trained_fixture import write_fixture


def main() -> None:
    """Trains and writes; progress goes to stderr and, without times, to the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="Rdata.rdb of r-cran-janeaustenr")
    parser.add_argument("--output", type=Path, default=Path("tests/fixtures"))
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    write_fixture(options.text, options.output, options.steps)


if __name__ == "__main__":
    main()
