"""What it costs to render a report: seconds and bytes for each format, as JSON on stdout.

    python scripts/bench_render.py [--rows 1000] [--runs 5]

Each figure is the median of several runs in one process, the first of which also imports the renderer. Goal: 1,000
rows in under 2 s of processor time in every format (what else the machine does is no matter of the renderer's), the
HTML under 3 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

from synthetic_report import synthetic_report

from andrea_export.render import FORMATS, render

GOAL_SECONDS, GOAL_HTML_BYTES = 2.0, 3_000_000


def main() -> None:
    """Measures and prints one JSON document; exits with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    report = synthetic_report(num_blocks=max(1, (options.rows // 2 - 3) // 10 + 1), faulty_layer="blocks.0.mlp.gelu")
    formats = {}
    for kind in FORMATS:
        seconds, cpu_seconds, text = [], [], ""
        for _ in range(options.runs):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            text = render(report, kind)
            seconds.append(time.perf_counter() - begin)
            cpu_seconds.append(time.process_time() - cpu_begin)
        formats[kind] = {
            "first_seconds": round(seconds[0], 3),
            "median_seconds": round(statistics.median(seconds), 3),
            "median_cpu_seconds": round(statistics.median(cpu_seconds), 3),
            "num_bytes": len(text.encode()),
        }
    met = formats["html"]["num_bytes"] < GOAL_HTML_BYTES and all(
        entry["median_cpu_seconds"] < GOAL_SECONDS for entry in formats.values()
    )
    print(
        json.dumps(
            {
                "num_rows": len(report.layers),
                "num_cores": os.cpu_count(),
                "load_average_before": os.getloadavg()[0],
                "python": platform.python_version(),
                "formats": formats,
                "goals_met": met,
            },
            indent=2,
        )
    )
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
