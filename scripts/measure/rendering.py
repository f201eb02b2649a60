"""What it costs to render a report, in one format."""

import statistics
import time
from typing import Any

from andrea_export.core.names import BLOCK_LAYERS
from andrea_export.report.render import Format, render
from andrea_export.report.schema import Report
from support.synthetic_report import synthetic_report

NUM_CANDIDATES, NUM_OUTER_LAYERS = 2, 3  # of the synthetic report: measured candidates, layers outside the blocks


def report_of(num_rows: int) -> Report:
    """A synthetic report of at least so many rows, one layer at fault."""
    layers = -(-num_rows // NUM_CANDIDATES) - NUM_OUTER_LAYERS
    return synthetic_report(num_blocks=max(1, -(-layers // len(BLOCK_LAYERS))), faulty_layer="blocks.0.mlp.gelu")


def measured(report: Report, kind: Format, num_runs: int) -> dict[str, Any]:
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
