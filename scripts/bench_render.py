"""What it costs to render a report: seconds and bytes for each format, as JSON.

    python scripts/bench_render.py [--rows 1000] [--runs 7] [--output docs/measurements/render.json]

A figure is the median of several runs in one process; the first of them, which also imports the renderer, is stated
beside it. Goal: a report of at least 1,000 rows in under 2 s of wall time in every format, the HTML under 3 MB. Wall
time counts what else the machine does: the load average is in the result, and above 1 a missed goal says little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from andrea_export.bundle.manifest import machine_facts
from andrea_export.core.names import BLOCK_LAYERS
from andrea_export.report.render import FORMATS, render
from andrea_export.report.render import Format as Kind
from andrea_export.report.schema import Report
from support.synthetic_report import synthetic_report

GOAL_SECONDS, GOAL_HTML_BYTES = 2.0, 3_000_000
NUM_CANDIDATES, NUM_OUTER_LAYERS = 2, 3  # of the synthetic report: measured candidates, layers outside the blocks


def main() -> None:
    """Measures and prints one JSON document, or writes it; exits with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    report = report_of(options.rows)
    formats = {kind: measured(report, kind, options.runs) for kind in FORMATS}
    met = formats["html"]["num_bytes"] < GOAL_HTML_BYTES and all(
        entry["median_seconds"] < GOAL_SECONDS for entry in formats.values()
    )
    result = {
        "num_rows": len(report.layers),
        "num_runs": options.runs,
        "formats": formats,
        "goal_seconds": GOAL_SECONDS,
        "goal_html_bytes": GOAL_HTML_BYTES,
        "goals_met": met,
        "num_cores": os.cpu_count(),
        "load_average_before": round(load_before, 2),
        "load_average_after": round(os.getloadavg()[0], 2),
        "machine": machine_facts(),
    }
    text = json.dumps(result, indent=2) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    raise SystemExit(0 if met else 1)


def report_of(num_rows: int) -> Report:
    """A synthetic report of at least so many rows, one layer at fault."""
    layers = -(-num_rows // NUM_CANDIDATES) - NUM_OUTER_LAYERS
    return synthetic_report(num_blocks=max(1, -(-layers // len(BLOCK_LAYERS))), faulty_layer="blocks.0.mlp.gelu")


def measured(report: Report, kind: Kind, num_runs: int) -> dict[str, Any]:
    """Seconds, and the bytes that one format has."""
    seconds, cpu_seconds, text = [], [], ""
    for _ in range(num_runs):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        text = render(report, kind)
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
    return {
        "first_seconds": round(seconds[0], 3),
        "median_seconds": round(statistics.median(seconds), 3),
        "median_cpu_seconds": round(statistics.median(cpu_seconds), 3),
        "num_bytes": len(text.encode()),
    }


if __name__ == "__main__":
    main()
