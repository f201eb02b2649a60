"""What a comparison costs: wall time, processor time and peak memory of `andrea-export diff`, as JSON on stdout.

    python scripts/bench_diff.py [--preset andrea-120m] [--tokens 128] [--runs 3]

Compares the torch model in fp64 with its own ONNX file, twice: ``tensors`` is the two passes (with taps, layer by layer
in both errors, and as shipped) over one row of that many tokens; ``with_language_model`` adds every context up to 1024,
the padded batch, decode and greedy. Goal on two cores, ANDREA-120M, 128 tokens, tensors: 30 s and 4 GB.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

import checkout  # noqa: F401
from measure.results import CommandRun, conditions, run_andrea_export, summary

from andrea_export.graph.canonical.export import export_canonical
from andrea_export.weights.load import load_model, save_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="andrea-120m")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    document = {"preset": options.preset, "tokens": options.tokens, **conditions()}
    runs: dict[str, list[CommandRun]] = {"tensors": [], "with_language_model": []}
    with tempfile.TemporaryDirectory() as name:
        command = _command(Path(name), options.preset, options.tokens)
        for index in range(options.runs):
            for kind, done in runs.items():
                done.append(run_andrea_export([*command, *(["--no-language-model"] if kind == "tensors" else [])]))
                print(f"run {index + 1} {kind}: {done[-1].seconds:.1f} s", file=sys.stderr)
    print(json.dumps({**document, **{kind: summary(done) for kind, done in runs.items()}}, indent=2))


def _command(folder: Path, preset: str, num_tokens: int) -> list[str]:
    """The comparison; its checkpoint, ONNX file and tokens are written into the folder."""
    checkpoint, tokens = folder / "model.safetensors", folder / "tokens.txt"
    save_checkpoint(load_model(preset=preset, checkpoint=None, seed=0).model, checkpoint)
    loaded = load_model(preset=None, checkpoint=checkpoint, seed=0)
    ids = random.Random(0).choices(range(loaded.config.vocab_size), k=num_tokens)
    tokens.write_text(",".join(map(str, ids)))
    return ["diff", str(checkpoint), str(export_canonical(loaded, folder)), "--inputs", str(tokens), "--json"]


if __name__ == "__main__":
    main()
