"""What it costs to render a report: seconds and bytes for each format, as JSON.

    python scripts/bench_render.py [--rows 1000] [--runs 7] [--output docs/measurements/render.json]

A figure is the median of several runs in one process; the first of them, which also imports the renderer, is stated
beside it. Goal: a report of at least 1,000 rows in under 2 s of wall time in every format, the HTML under 3 MB. Wall
time counts what else the machine does: the load average is in the result, and above 1 a missed goal says little.
"""

import argparse
import json
import os
from pathlib import Path

import checkout  # noqa: F401
from measure.rendering import measured, report_of
from measure.results import conditions, write_result

from andrea_export.report.render import FORMATS

GOAL_SECONDS, GOAL_HTML_BYTES = 2.0, 3_000_000


def main() -> None:
    """Measures and prints one JSON document, or writes it; exits with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    made_under, report = conditions(), report_of(options.rows)
    formats = {kind: measured(report, kind, options.runs) for kind in FORMATS}
    quick = all(entry["median_seconds"] < GOAL_SECONDS for entry in formats.values())
    met = quick and formats["html"]["num_bytes"] < GOAL_HTML_BYTES
    document = {
        "num_rows": len(report.layers),
        "num_runs": options.runs,
        "formats": formats,
        "goal_seconds": GOAL_SECONDS,
        "goal_html_bytes": GOAL_HTML_BYTES,
        "goals_met": met,
        **made_under,
        "load_average_after": round(os.getloadavg()[0], 2),
    }
    if options.output is None:
        print(json.dumps(document, indent=2))
    else:
        write_result(options.output, document)
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
