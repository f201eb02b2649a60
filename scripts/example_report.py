"""Makes the example report: the trained fixture's graph as it was exported, and with a fault planted in it.

    python scripts/example_report.py [--output docs/example]

The fault is the classic one of this model: the erf form of GELU in one block, where the model has the tanh form. What
`andrea-export diff` says of both, under the default policy, is written in every format.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import onnx

from andrea_export.cli.diff import write_reports
from andrea_export.compare.inputs import Inputs, seeded_cases
from andrea_export.compare.sources.onnx_source import OnnxSource, onnx_source
from andrea_export.compare.sources.torch_source import torch_source
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.progress import Silent
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.judge.verdicts import Terms
from andrea_export.validation.diff import diff, text_tokens
from andrea_export.weights.load import LoadedModel, load_model
from support.paths import FIXTURES, ROOT
from support.planted import plantings

FAULT, BLOCK = "erf for tanh", 2


def main() -> None:
    """Exports, plants, compares, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "example")
    options = parser.parse_args()
    checkpoint, text = FIXTURES / "austen.safetensors", FIXTURES / "austen_held_out.txt"
    reference = torch_source(checkpoint, "fp64")
    config = reference.identity.config
    loaded = load_model(preset=None, checkpoint=checkpoint, seed=0)
    with tempfile.TemporaryDirectory() as name:
        sound = export_canonical(loaded, Path(name))
        faulty = sound.with_name("erf-for-tanh.onnx")
        model = onnx.load(sound)
        next(planting for planting in plantings(config, [BLOCK]) if planting.fault == FAULT).into(model)
        onnx.save(model, faulty)
        candidates = [named("as-exported", sound, loaded), named("erf-for-tanh", faulty, loaded)]
        inputs = Inputs(cases=seeded_cases(config), text=text_tokens(text, config), source=f"seed 0; text: {text.name}")
        report = diff(reference, candidates, inputs, Terms(), progress=Silent())
    print(write_reports(options.output, report))


def named(name: str, path: Path, loaded: LoadedModel) -> OnnxSource:
    """An ONNX file as a candidate under a name of its own."""
    return OnnxSource(
        path,
        loaded.config,
        loaded.origin,
        precision=PRECISIONS["fp32"],
        name=name,
        provenance=onnx_source(path).identity.provenance,
    )


if __name__ == "__main__":
    main()
