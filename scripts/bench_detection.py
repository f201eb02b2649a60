"""How many planted faults are caught, in which layer, and how often a sound graph is failed: the proof of the proof.

    python scripts/bench_detection.py --output docs/measurements/detection [--only faults|subtle|large|sound] [--quick]
    python scripts/bench_detection.py --output docs/measurements/detection --join faults.json subtle.json …

Writes OUTPUT.json and OUTPUT.md; ``--join`` makes both from earlier runs. Faults are those of ``support.planted``;
comparators those of ``support.detection``, and each is given every graph. A fault matters if it moves a logit by more
than the logits' budget. Goals: every fault that matters is caught; the layer named is the planted one in at least 99 %
of those caught; no sound run fails. Exits with 1 where a goal is missed.

Models: the trained fixture (every fault in the first and the last block), the same with outlier channels and the
untrained andrea-tiny (a quarter of the faults of one block), andrea-120m with outlier channels (a sample: ``large``),
and the trained one again with faults near what rounding does (``subtle``). ``--quick`` takes a few faults and runs.
"""

import argparse
from pathlib import Path

import checkout  # noqa: F401
from measure.results import conditions

from support.detection import OURS
from support.detection_benchmark.result import goals_met, joined, write
from support.detection_benchmark.rounds import measure
from support.detection_benchmark.series import PARTS


def main() -> None:
    """Measures, writes both files, prints the table; exits with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--join", type=Path, nargs="+", default=[])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    if options.join:
        write(options.output, joined(options.join))
    else:
        measure(options.output, options.only, quick=options.quick, conditions=conditions())
    print(options.output.with_suffix(".md").read_text(encoding="utf-8"))
    raise SystemExit(0 if goals_met(joined([options.output.with_suffix(".json")])["comparators"][OURS]) else 1)


if __name__ == "__main__":
    main()
