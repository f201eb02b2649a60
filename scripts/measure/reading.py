"""Checkpoints of one model in every format, and what reading and converting each costs."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from andrea_export.weights.load import load_model, save_checkpoint
from andrea_export.weights.readers.gpt2 import GPT2
from andrea_export.weights.write import gpt2_facts, write_safetensors
from andrea_model.config import PRESETS, AndreaConfig
from andrea_model.model import build_model, parameter_shapes
from measure.results import run_andrea_export
from support.foreign import write_gpt2, write_llmc, write_nanogpt, write_published

_READ = """
import sys, time
from pathlib import Path
import torch
from andrea_export.weights.load import load_model
from andrea_model.config import PRESETS
from andrea_model.model import build_model
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**10
before = peak()
begin = time.perf_counter()
load_model(preset=None, checkpoint=Path(sys.argv[1]), seed=0)
print(time.perf_counter() - begin, before, peak())
"""
_XL = AndreaConfig(d_model=1600, n_head=25, n_layer=48, n_ctx=1024, vocab_size=50257, mlp_dim=6400)
_PER_BLOCK = ("attn.q", "attn.k", "attn.v", "attn.proj", "mlp.fc", "mlp.proj")


def written(folder: Path, preset: str) -> dict[str, Path]:
    """The same untrained model in every format; the published one is the variant that its count says."""
    model = load_model(preset=preset, checkpoint=None, seed=0).model
    bare = build_model(replace(PRESETS[preset], tied_head=False, bias=False, norm_parameters=False), seed=0)
    names = [f"blocks.{block}.{name}.weight" for block in range(model.config.n_layer) for name in _PER_BLOCK]
    order = ["token_embed.weight", "position_embed.weight", "head.weight", *names]
    save_checkpoint(model, folder / "ours.safetensors")
    return {
        "our safetensors": folder / "ours.safetensors",
        "Hugging Face GPT-2": write_gpt2(folder / "gpt2", model),
        "Hugging Face GPT-2, 3 shards": write_gpt2(folder / "shards", model, num_shards=3),
        "nanoGPT": write_nanogpt(folder / "ckpt.pt", model),
        "llm.c": write_llmc(folder / "gpt2.bin", model, num_rows=model.config.vocab_size + 63),
        "published ANDREA": write_published(folder / "andrea.bin", bare, names=order),
    }


def measured(source: Path, folder: Path, num_runs: int) -> dict[str, Any]:
    """Reading, copying and converting one of them."""
    copies, reads, peaks, conversions = [], [], [], []
    files = [source] if source.is_file() else sorted(source.iterdir())
    num_bytes = sum(file.stat().st_size for file in files)
    for _ in range(num_runs):
        begin = time.perf_counter()
        subprocess.run(["cp", "-r", source, folder / "copy"], check=True)
        copies.append(time.perf_counter() - begin)
        subprocess.run(["rm", "-r", folder / "copy"], check=True)
        done = subprocess.run([sys.executable, "-c", _READ, source], check=True, capture_output=True, text=True)
        seconds, before, peak = map(float, done.stdout.split())
        reads.append(seconds)
        peaks.append(peak - before)
        conversions.append(run_andrea_export(["convert", str(source), str(folder / "out.safetensors")]))
        weights = (folder / "out.safetensors").stat().st_size
        (folder / "out.safetensors").unlink()
    copy, read = statistics.median(copies), statistics.median(reads)
    print(f"{source.name}: read {read:.2f} s, cp {copy:.2f} s", file=sys.stderr)
    return {
        "mib": round(num_bytes / 2**20, 1),
        "cp_seconds": round(copy, 2),
        "read_seconds": round(read, 2),
        "read_within_goal": read <= 2 * copy + 1,
        "read_memory_over_start_mib": round(max(peaks), 1),
        "weights_mib": round(weights / 2**20, 1),
        "convert_seconds": statistics.median(run.seconds for run in conversions),
        "convert_peak_mib": max(run.peak_mib for run in conversions),
        "convert_within_goal": max(run.peak_mib for run in conversions) <= 1.2 * weights / 2**20,
    }


def large(folder: Path) -> dict[str, Any]:
    """Inspecting and converting it."""
    source = folder / "xl"
    inspected = run_andrea_export(["inspect", str(source), "--json"])
    converted = run_andrea_export(["convert", str(source), str(folder / "out.safetensors")])
    assert inspected.exit_code == converted.exit_code == 0
    return {
        "mib": round((source / "model.safetensors").stat().st_size / 2**20, 1),
        "inspect_seconds": inspected.seconds,
        "inspect_peak_mib": inspected.peak_mib,
        "convert_seconds": converted.seconds,
        "convert_peak_mib": converted.peak_mib,
    }


def write_large(source: Path) -> None:
    """The 1.5 B shape with random weights."""
    source.mkdir()
    shapes = {GPT2.parts(name)[0]: shape for name, shape in parameter_shapes(_XL).items()}

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape in shapes.items():
            yield name, torch.empty(shape).uniform_(-0.02, 0.02)

    facts = {name: ("F32", shape) for name, shape in shapes.items()}
    write_safetensors(source / "model.safetensors", facts, weights(), {"format": "pt"}, source)
    (source / "config.json").write_text(json.dumps(gpt2_facts(_XL)), encoding="utf-8")


def all_formats(preset: str, num_runs: int) -> dict[str, Any]:
    """Every format of a preset, measured. Written by another process: a child's peak begins at its parent's."""
    with tempfile.TemporaryDirectory() as folder:
        with get_context("spawn").Pool(1) as other:
            sources = other.apply(written, (Path(folder), preset))
        os.sync()
        return {name: measured(source, Path(folder), num_runs) for name, source in sources.items()}


def large_shape() -> dict[str, Any]:
    """The 1.5 B shape, measured."""
    with tempfile.TemporaryDirectory() as folder:
        with get_context("spawn").Pool(1) as other:
            other.apply(write_large, (Path(folder) / "xl",))
        os.sync()
        return large(Path(folder))
