"""Makes the example report: the trained fixture's graph as it was exported, and with a fault planted in it.

    python scripts/example_report.py [FOLDER]

The fault is the classic one of this model: the erf form of GELU in one block, where the model has the tanh form. What
`andrea-export diff` says of both, under the default policy, is written in every format, by default to build/example.
"""

import argparse
from pathlib import Path

import onnx
from checkout import ROOT

from andrea_export.cli.diff import write_reports
from andrea_export.compare.inputs import Inputs, seeded_cases, text_tokens
from andrea_export.compare.sources.torch_source import torch_source
from andrea_export.core.progress import Silent
from andrea_export.judge.verdicts import Terms
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import load_model
from support.detection import Subject, subject_of
from support.paths import FIXTURES
from support.planted import plantings

FAULT, BLOCK = "erf for tanh", 2
CHECKPOINT, TEXT = FIXTURES / "austen.safetensors", FIXTURES / "austen_held_out.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "example")
    folder = parser.parse_args().folder
    loaded = load_model(preset=None, checkpoint=CHECKPOINT, seed=0)
    with subject_of(loaded) as trained:
        print(write_example(folder, trained))


def write_example(folder: Path, trained: Subject) -> Path:
    """Plants the fault in a copy of the trained fixture's graph, compares both; returns the HTML page."""
    reference = torch_source(CHECKPOINT, "fp64")
    config, faulty = trained.loaded.config, trained.folder / "erf-for-tanh.onnx"
    model = onnx.load(trained.clean)
    next(planting for planting in plantings(config, [BLOCK]) if planting.fault == FAULT).into(model)
    onnx.save(model, faulty)
    candidates = [trained.source(trained.clean, "as-exported"), trained.source(faulty, "erf-for-tanh")]
    inputs = Inputs(cases=seeded_cases(config), text=text_tokens(TEXT, config), source=f"seed 0; text: {TEXT.name}")
    return write_reports(folder, diff(reference, candidates, inputs, Terms(), progress=Silent()))


if __name__ == "__main__":
    main()
