"""Measures andrea-export's runtime against its peers in one run, and writes the table.

    python scripts/bench_peers.py FOLDER [--output docs/measurements/PROCESSOR] [--rounds 5] [--only NAME]

Everything is kept in FOLDER and reused: a virtual environment for each peer, one set of seeded ANDREA-120M weights,
that model in every peer's format, and a bundle; all that again for the small trained checkpoint of the tests. Then
every contender of one precision is started, warmed, and measured in alternating rounds, each in a process of its own,
and afterwards asked for its logits after held-out text. The goals are factors of the best peer in the same run.
"""

import argparse
import sys
from pathlib import Path

import checkout  # noqa: F401
from measure.results import write_result
from peers.prepare import PEERS, PRECISIONS, prepare
from peers.report import markdown
from peers.rounds import run_of

from andrea_export.runtime.cores import num_usable_cores


def main() -> None:
    """Prepares what is missing, measures, writes JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, help="a folder; left out: FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="a peer's name; repeat it")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=num_usable_cores())
    parser.add_argument("--prepare-only", action="store_true")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    peers = [peer for peer in PEERS if not options.only or peer.name in (*options.only, "andrea")]
    problems = prepare(peers, folder)
    if options.prepare_only:
        sys.exit(f"not prepared: {problems}" if problems else 0)
    prepared = [peer for peer in peers if peer.name not in problems]
    precisions = options.precision or PRECISIONS
    document = run_of(prepared, precisions, folder, num_rounds=options.rounds, threads=options.threads)
    document["not_prepared"] = problems
    write_result((options.output or folder) / "peers.json", document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
