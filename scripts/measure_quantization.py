"""What int8 and int4 cost on a trained model and real text, variant by variant and layer by layer.

    python scripts/measure_quantization.py CHECKPOINT TEXT [--output docs/measurements/quantization]

For each variant of the CPU graphs: KL(fp32 ‖ variant), the share of positions with the same likeliest token, and the
perplexity, on windows of the text as byte tokens, half of each as prompt and half step by step, as in use; and KL after
prompts alone, of as many lengths as there are windows, for the tokens of one prompt share a range. Among the variants,
for each linear layer of every block by name, is the one where it alone is kept one precision higher. A layer is
sensitive if that takes away more of the KL than its share of the weights.
"""

import argparse
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
from measure.quantization import rows_of, table_of
from measure.results import processor_facts, write_result

from andrea_export.weights.load import load_model


def main() -> None:
    """Measures, prints a Markdown table, writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    loaded = load_model(preset=None, checkpoint=options.checkpoint, seed=0)
    rows = rows_of(loaded, options.text, options.windows, options.length)
    table = "\n".join(table_of(rows)) + "\n"
    print(table, end="")
    if options.output is not None:
        machine = processor_facts()
        document: dict[str, Any] = {
            "checkpoint": str(loaded.origin),
            "machine": machine,
            "text": options.text.name,
            "windows": options.windows,
            "length": options.length,
            "rows": rows,
        }
        head = (
            "# What int8 and int4 cost\n\nMade by `scripts/measure_quantization.py`; do not edit. "
            f"{loaded.origin}, {options.text.name}: {options.windows} windows of {options.length} byte tokens, half of "
            "each as prompt, half step by step, and prompts of as many lengths alone; against the fp32 graph. Kernels "
            f"differ in how they round; these are those of {machine['cpu']} ({machine['flags']}).\n\n"
        )
        write_result(options.output, document, head + table)


if __name__ == "__main__":
    main()
