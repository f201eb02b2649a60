"""Where the time of a CPU graph goes, operator by operator, from onnxruntime's own profile.

    python scripts/profile_runtime.py BUNDLE [--output docs/measurements/PROCESSOR/profile]

For every precision of the bundle: a token after 32 to 132 others, and a prompt of 128. Medians of each node over all
runs, added up by operator and layer. Profiling costs a few microseconds a node, so the sums are above what runs take;
the shares are what to look at. The weights' bytes and the machine's limits say how far an operator could go.
"""

import argparse
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import onnxruntime
from measure.profile import markdown_of, profiles_of
from measure.results import processor_facts, write_result

from andrea_export.bundle.manifest import open_bundle
from andrea_export.runtime.cores import num_usable_cores
from andrea_export.runtime.machine import measure_limits


def main() -> None:
    """Profiles, prints Markdown, writes it and JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    bundle, threads = open_bundle(options.bundle), num_usable_cores()
    limits = measure_limits(threads)
    document: dict[str, Any] = {
        "machine": processor_facts(),
        "onnxruntime": onnxruntime.__version__,
        "threads": threads,
        "read_bytes_s": limits.read_bytes_s,
        "fp32_flops": limits.fp32_flops,
        "int8_ops": limits.int8_ops,
        "graphs": [row for precision in bundle.manifest.ort_cpu for row in profiles_of(bundle, precision, threads)],
    }
    print(markdown_of(document))
    if options.output is not None:
        write_result(options.output, document, markdown_of(document))


if __name__ == "__main__":
    main()
