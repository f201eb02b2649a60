"""Regenerates the tables of plugins/gelu/README.md from the compiled kernels and from exhaustive evaluation.

    python plugins/measure/tables.py            prints them
    python plugins/measure/tables.py --write    puts them into the README, between its markers

Needs the extras `plugin` and `dev` (nvcc, cuobjdump, nvdisasm), and no GPU.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from sass import Kernel, find_cuobjdump, operator_kernels, pipes, read_kernels, read_usage

from andrea_export.operators.build import HostGelu, build_host_library, build_plugin_library
from andrea_export.operators.toolchain import find_cuda_toolkit

PLUGINS = Path(__file__).resolve().parents[1]
README = PLUGINS / "gelu" / "README.md"
CACHE = PLUGINS.parent / "build" / "measure-cache"
sys.path.insert(0, str(PLUGINS.parent / "tests" / "plugins"))

from gelu_truth import BF16, FP16, FP32, Format, correctly_rounded, errors_in_ulp, gelu_truth  # noqa: E402

Values = NDArray[np.generic]

# What the PTX ISA (version 9) documents of the approximate instructions:
#   9.7.3.21 "Floating Point Instructions: ex2"              2 ulp from the correctly rounded result
#   9.7.3.13 "Floating Point Instructions: rcp"              1 ulp
#   9.7.3.22 "Floating Point Instructions: tanh"             2^-11 of the result
#   9.7.4.10 "Half Precision Floating Point Instructions: ex2"    2^-9.9 (f16) and 2^-7 (bf16) of the result
#   9.7.4.9  "Half Precision Floating Point Instructions: tanh"   2^-10.987 (f16) and 2^-8 (bf16), absolute
# n ulp are n 2^-23 of a result whose significand is 1, and less of every other: as a relative error, before the result
# is rounded to fp32, n 2^-23 reaches n ulp from the correctly rounded result everywhere, and up to 2 n.
EX2, RCP, TANH = 2.0**-22, 2.0**-23, 2.0**-11
EX2_F16, TANH_F16 = 2.0**-9.9, 2.0**-10.987
EX2_BF16, TANH_BF16 = 2.0**-7, 2.0**-8

COLUMNS = ("sm_80", "sm_90", "sm_120")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """One row: a kernel of formulations.cu and its arithmetic, given the signs of the approximations' errors."""

    kernel: str
    storage: str
    text: str
    evaluate: Callable[[Values, float, float], Values]
    ships: bool = False


def inner(x: Values, one: Callable[[Values], Values]) -> Values:
    """u of the tanh form, each operation rounded by `one`; the fused multiply-add once."""
    slope = one(np.float64(0.0356774081) * one(x * x) + np.float64(0.797884561))
    return one(x * slope)


def exponent(x: Values, one: Callable[[Values], Values]) -> Values:
    """t of the exp form, likewise."""
    slope = one(np.float64(-0.102943240) * one(x * x) - np.float64(2.30220820))
    return one(x * slope)


def to_type(dtype: np.dtype[np.generic]) -> Callable[[Values], Values]:
    """Rounding to a storage type, the result again in float64."""
    return lambda value: np.asarray(value).astype(dtype).astype(np.float64)


def tanh_form(one: Callable[[Values], Values], tanh_error: float, *, absolute: bool) -> Callable[..., Values]:
    """0.5 x + 0.5 x tanh(u), with an error of tanh of the given sign and kind."""

    def evaluate(x: Values, sign: float, _: float) -> Values:
        tanh = np.tanh(inner(x, one))
        tanh = tanh + sign * tanh_error if absolute else tanh * (1 + sign * tanh_error)
        tanh = np.clip(tanh, -1, 1)
        half = one(0.5 * x)
        return one(half * one(tanh) + half)

    return evaluate


def exp_form(one: Callable[[Values], Values], exp_error: float, rcp_error: float) -> Callable[..., Values]:
    """x / (1 + 2^t), with errors of exp2 and of the reciprocal."""

    def evaluate(x: Values, exp_sign: float, rcp_sign: float) -> Values:
        power = one(np.exp2(exponent(x, one)) * (1 + exp_sign * exp_error))
        reciprocal = one(1 / one(1 + power) * (1 + rcp_sign * rcp_error))
        return one(x * reciprocal)

    return evaluate


def formulations(host: HostGelu) -> tuple[Formulation, ...]:
    """Every formulation that was tried."""
    fp32, fp16, bf16 = (to_type(np.dtype(kind)) for kind in (np.float32, np.float16, ml_dtypes.bfloat16))

    def shipped(storage: str, dtype: np.dtype[np.generic]) -> Callable[[Values, float, float], Values]:
        def evaluate(x: Values, exp_sign: float, rcp_sign: float) -> Values:
            errors = (
                {}
                if storage == "fp32"
                else {
                    "exp2_relative_error": exp_sign * EX2,
                    "reciprocal_relative_error": rcp_sign * RCP,
                }
            )
            return host.apply(x.astype(dtype), storage, **errors).astype(np.float64)

        return evaluate

    half, brain = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    return (
        Formulation(
            kernel="fp32_exp_compensated",
            storage="fp32",
            ships=True,
            text="x / (1 + 2^t), t in two parts, own 2^f, corrected quotient",
            evaluate=shipped("fp32", np.dtype(np.float32)),
        ),
        Formulation(
            kernel="fp32_exp_plain",
            storage="fp32",
            text="x / (1 + 2^t), `ex2.approx`, `rcp.approx`",
            evaluate=exp_form(fp32, EX2, RCP),
        ),
        Formulation(
            kernel="fp32_tanh_accurate",
            storage="fp32",
            text="0.5 x (1 + tanhf(u)), as torch",
            # CUDA's tanhf: 2 ulp (CUDA Programming Guide 13, 5.5.7.5 "Hyperbolic Functions").
            evaluate=tanh_form(fp32, 2.0**-22, absolute=False),
        ),
        Formulation(
            kernel="fp32_tanh_approx",
            storage="fp32",
            text="0.5 x (1 + tanh(u)), `tanh.approx.f32`",
            evaluate=tanh_form(fp32, TANH, absolute=False),
        ),
        Formulation(
            kernel="fp16_exp",
            storage="fp16",
            ships=True,
            text="x / (1 + 2^t) in fp32, `ex2.approx`, `rcp.approx`",
            evaluate=shipped("fp16", half),
        ),
        Formulation(
            kernel="fp16_tanh_approx",
            storage="fp16",
            text="0.5 x (1 + tanh(u)) in fp32, `tanh.approx.f32`",
            evaluate=tanh_form(fp32, TANH, absolute=False),
        ),
        Formulation(
            kernel="fp16_packed_tanh",
            storage="fp16",
            text="0.5 x (1 + tanh(u)) in half2, `tanh.approx.f16x2`",
            evaluate=tanh_form(fp16, TANH_F16, absolute=True),
        ),
        Formulation(
            kernel="fp16_packed_exp",
            storage="fp16",
            text="x / (1 + 2^t) in half2, `ex2.approx.f16x2`, `h2rcp`",
            evaluate=exp_form(fp16, EX2_F16, RCP),
        ),
        Formulation(
            kernel="bf16_exp_scaled",
            storage="bf16",
            ships=True,
            text="x 2^-12 / (2^-12 + 2^(t - 12)) in fp32, `ex2.approx`, `rcp.approx`",
            evaluate=shipped("bf16", brain),
        ),
        Formulation(
            kernel="bf16_tanh_approx",
            storage="bf16",
            text="0.5 x (1 + tanh(u)) in fp32, `tanh.approx.f32`",
            evaluate=tanh_form(fp32, TANH, absolute=False),
        ),
        Formulation(
            kernel="bf16_packed_tanh",
            storage="bf16",
            text="0.5 x (1 + tanh(u)) in bf16x2, `tanh.approx.bf16x2`",
            evaluate=tanh_form(bf16, TANH_BF16, absolute=True),
        ),
        Formulation(
            kernel="bf16_packed_exp",
            storage="bf16",
            text="x / (1 + 2^t) in bf16x2, `ex2.approx.ftz.bf16x2`, `h2rcp`",
            evaluate=exp_form(bf16, EX2_BF16, RCP),
        ),
    )


def inputs(storage: str) -> tuple[Values, Format, np.dtype[np.generic]]:
    """Every finite input of a 16-bit type; a million of [-12, 12] for fp32."""
    if storage == "fp32":
        dense = np.linspace(-12, 12, 1_000_001).astype(np.float32)
        return dense.astype(np.float64), FP32, np.dtype(np.float32)
    dtype = np.dtype(np.float16 if storage == "fp16" else ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        every = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float64)
    return every[np.isfinite(every)], FP16 if storage == "fp16" else BF16, dtype


def largest_errors(row: Formulation) -> tuple[float, float]:
    """The largest distance from the correctly rounded value, in ulp, over all x and over x >= -4.

    Over all x the approximate instructions are exact and only roundings count; from -4 on each has its documented
    error, in every combination of signs. (Below, where hardware saturates, the documented bounds say too little.)
    """
    x, form, dtype = inputs(row.storage)
    nearest = correctly_rounded(gelu_truth(x), form)
    everywhere, above = 0.0, 0.0
    for signs in [(0.0, 0.0), *itertools.product((-1.0, 1.0), repeat=2)]:
        with np.errstate(all="ignore"):
            result = row.evaluate(x, *signs).astype(dtype)
            distance = errors_in_ulp(result, nearest, form)
        distance = np.where(np.isnan(distance), np.inf, distance)
        if signs == (0.0, 0.0):
            everywhere = float(distance.max())
        above = max(above, float(distance[x >= -4].max()))
    return everywhere, above


def compile_formulations(folder: Path) -> dict[str, dict[str, Kernel]]:
    """The kernels of formulations.cu by architecture and name."""
    toolkit, cuobjdump = find_cuda_toolkit(), find_cuobjdump()
    assert cuobjdump is not None, "pip install 'andrea-export[dev]'"
    compiled = {}
    for architecture in COLUMNS:
        cubin = folder / f"{architecture}.cubin"
        command = [str(toolkit.nvcc.path), "-std=c++17", f"-arch={architecture}", "-cubin", "-I", str(PLUGINS)]
        subprocess.run([*command, "-o", str(cubin), str(PLUGINS / "measure" / "formulations.cu")], check=True)
        compiled[architecture] = {kernel.symbol: kernel for kernel in read_kernels(cuobjdump, cubin)}
    return compiled


def formulation_table() -> str:
    """Every formulation: instructions an element, and its errors."""
    host = build_host_library(CACHE)
    lines = [
        "| type | formulation | instructions per element: " + " / ".join(COLUMNS) + " | fp32 pipe, MUFU (sm_90) "
        "| largest error, ulp: exact functions, all x | documented errors, x ≥ -4 | ships |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_formulations(Path(folder))
    for row in formulations(host):
        elements = 4 if row.storage == "fp32" else 8
        counts = []
        for architecture in COLUMNS:
            kernels = compiled[architecture]
            if row.kernel in kernels:
                extra = len(kernels[row.kernel].instructions) - len(kernels["copy"].instructions)
                counts.append(f"{extra / elements:.1f}")
            else:
                counts.append("not there")
        used = pipes(compiled["sm_90"][row.kernel].instructions)
        everywhere, above = largest_errors(row)
        lines.append(
            f"| {row.storage} | {row.text} | {' / '.join(counts)} | {used['fp32'] / elements:.0f}, "
            f"{used['mufu'] / elements:.0f} | {everywhere:.3g} | {above:.3g} | {'yes' if row.ships else ''} |"
        )
    return "\n".join(lines)


def kernel_table(library: Path) -> str:
    """The kernels in the plugin library: what one round of their main loop executes."""
    cuobjdump = find_cuobjdump()
    assert cuobjdump is not None, "pip install 'andrea-export[dev]'"
    usage = {(row.architecture, row.symbol): row for row in read_usage(cuobjdump, library)}
    lines = [
        "| type | architecture | packs per thread | instructions per element | fp32 pipe | MUFU | registers |",
        "|---|---|---|---|---|---|---|",
    ]
    found = sorted(
        operator_kernels(read_kernels(cuobjdump, library), "gelu"),
        key=lambda one: (
            ("Fp32", "Fp16", "Bf16").index(one.storage),
            int(one.kernel.architecture.removeprefix("sm_")),
            -one.packs,
        ),
    )
    for one in found:
        loop = one.main_loop
        used = pipes(loop)
        registers = usage[one.kernel.architecture, one.kernel.symbol].registers
        lines.append(
            f"| {one.storage.lower()} | {one.kernel.architecture} | {one.packs} | {len(loop) / one.elements:.1f} "
            f"| {used['fp32'] / one.elements:.0f} | {used['mufu'] / one.elements:.0f} | {registers} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a GPU's data sheet says (boost clock; fp32 lanes a multiprocessor by its architecture)."""

    name: str
    architecture: str
    gigabytes_per_s: float
    num_multiprocessors: int
    gigahertz: float
    fp32_lanes: int


GPUS = (
    Gpu(name="A100 80 GB", architecture="sm_80", gigabytes_per_s=2039, num_multiprocessors=108, gigahertz=1.41,
        fp32_lanes=64),
    Gpu(name="RTX 4090", architecture="sm_89", gigabytes_per_s=1008, num_multiprocessors=128, gigahertz=2.52,
        fp32_lanes=128),
    Gpu(name="H100 SXM", architecture="sm_90", gigabytes_per_s=3350, num_multiprocessors=132, gigahertz=1.98,
        fp32_lanes=128),
    Gpu(name="H200 SXM", architecture="sm_90", gigabytes_per_s=4800, num_multiprocessors=132, gigahertz=1.98,
        fp32_lanes=128),
    Gpu(name="RTX 5090", architecture="sm_120", gigabytes_per_s=1792, num_multiprocessors=170, gigahertz=2.41,
        fp32_lanes=128),
)  # fmt: skip
_ISSUE_LANES = 128  # four schedulers, 32 lanes an instruction, one instruction a clock each
_MUFU_LANES = 16


def floor_table(library: Path) -> str:
    """The time an element takes at the least, by what limits it, as a share of the time its bytes take."""
    cuobjdump = find_cuobjdump()
    assert cuobjdump is not None, "pip install 'andrea-export[dev]'"
    kernels = operator_kernels(read_kernels(cuobjdump, library), "gelu")
    lines = [
        "| GPU | type | bytes over bandwidth, ps per element | issue slots | fp32 pipe | MUFU |",
        "|---|---|---|---|---|---|",
    ]
    for gpu in GPUS:
        for storage, element_bytes in (("Fp32", 4), ("Fp16", 2), ("Bf16", 2)):
            (one,) = (
                found
                for found in kernels
                if (found.kernel.architecture, found.storage, found.packs) == (gpu.architecture, storage, 2)
            )
            loop = one.main_loop
            used = pipes(loop)
            memory_ps = 2 * element_bytes / gpu.gigabytes_per_s * 1000
            clocks_per_ps = gpu.num_multiprocessors * gpu.gigahertz / 1000
            shares = (
                len(loop) / one.elements / (_ISSUE_LANES * clocks_per_ps) / memory_ps,
                used["fp32"] / one.elements / (gpu.fp32_lanes * clocks_per_ps) / memory_ps,
                used["mufu"] / one.elements / (_MUFU_LANES * clocks_per_ps) / memory_ps,
            )
            cells = " | ".join(f"{share:.0%}" for share in shares)
            lines.append(f"| {gpu.name} | {storage.lower()} | {memory_ps:.2f} | {cells} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Path], str]] = {
    "formulations": lambda _: formulation_table(),
    "kernels": kernel_table,
    "floors": floor_table,
}


def replace_table(text: str, name: str, table: str) -> str:
    """The README's text with the named table's lines replaced."""
    pattern = re.compile(rf"(<!-- table: {name} -->\n)(?:(?!<!--).)*(<!-- end -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda match: match.group(1) + table + "\n" + match.group(2), text)
    if count != 1:
        raise SystemExit(f"{README}: expected one table named {name}, found {count}")
    return replaced


def main() -> None:
    """Prints the tables, or writes them."""
    text = README.read_text() if "--write" in sys.argv[1:] else None
    library = build_plugin_library(CACHE).library
    for name, make in TABLES.items():
        table = make(library)
        sys.stdout.write(f"{name}\n\n{table}\n\n")
        if text is not None:
            text = replace_table(text, name, table)
    if text is not None:
        README.write_text(text)


if __name__ == "__main__":
    main()
