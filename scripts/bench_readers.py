"""What reading and converting checkpoints costs: every format of ANDREA-120M, and a GPT-2 of 1.5 B, as JSON on stdout.

    python scripts/bench_readers.py [--preset andrea-120m] [--runs 3] [--large]

Reading is ``load_model`` in a process that has torch, hash included; it is held against ``cp`` of the same files, both
from a warm page cache. Goals: reading within twice cp's time and a second; converting in 1.2 × the weights of memory;
the large shape (12.4 GB of disk) inspected in a second, converted under 8 GB. Memory is the kernel's resident peak;
``start`` is what Python and its packages take of it.
"""

import argparse
import json
from typing import Any

import checkout
from measure.reading import all_formats, large_shape
from measure.results import conditions, run_andrea_export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="andrea-120m")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="the 1.5 B shape, too")
    options = parser.parse_args()
    start = run_andrea_export(["inspect", str(checkout.ROOT / "tests/fixtures/austen.safetensors"), "--json"])
    document: dict[str, Any] = {"preset": options.preset, "start_mib": start.peak_mib, **conditions()}
    document["formats"] = all_formats(options.preset, options.runs)
    if options.large:
        document["gpt2 of 1.5 B"] = large_shape()
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
