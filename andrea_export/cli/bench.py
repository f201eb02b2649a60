"""``andrea-export bench``: latency, throughput and memory of a bundle, as shares of what this machine can do."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.options import (
    DraftOption,
    JsonOption,
    OrtPrecisionChoice,
    ProviderChoice,
    ProviderOption,
    ThreadsOption,
    option,
)
from andrea_export.cli.output import emit_result, note, size
from andrea_export.core.errors import UsageError
from andrea_export.core.lines import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from andrea_export.runtime.bench import Decode, Figures, Subject
    from andrea_export.runtime.machine import MachineLimits


def bench(
    bundle: Annotated[Path, typer.Argument(help="A folder that andrea-export build made.", metavar="BUNDLE")],
    *,
    provider: ProviderOption = ProviderChoice.CPU,
    precision: Annotated[
        list[OrtPrecisionChoice] | None,
        option(
            "--precision", "What to measure: fp32, int8 or int4. Repeat it. [default: all the bundle has]", "PRECISION"
        ),
    ] = None,
    against: Annotated[
        list[Path] | None, option("--against", "Another bundle, measured in the same rounds. Repeat it.", "DIR")
    ] = None,
    draft: DraftOption = None,
    rounds: Annotated[int, option("--rounds", "How often everything is measured.", "N", default_shown=True)] = 5,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a bundle's speed and memory.

    First token, prompts, decoding and peak memory: medians, and each figure's share of this machine's limit. Every
    precision runs in a process of its own, and all take turns, round by round. A prompt's time is the time to its
    next-token logits. With --draft, a precision is measured with it and without, in greedy text and in text drawn at
    temperature 1: fp32, or those that --precision names.
    """
    from andrea_export.runtime.bench import measure
    from andrea_export.runtime.machine import measure_limits

    if rounds < 1:
        raise UsageError(f"--rounds is {rounds}, expected at least 1")
    wanted = None if precision is None else [choice.value for choice in precision]
    subjects = [
        subject
        for folder in (bundle, *(against or ()))
        for subject in _subjects(folder, provider.value, wanted, threads, None if draft is None else draft.value)
    ]
    figures = measure(subjects, rounds=rounds, on_round=lambda number: note(f"round {number + 1} of {rounds} …"))
    limits = measure_limits(figures[0].num_threads)
    shown = (figures, limits, rounds)
    emit_result(lambda: _document(*shown), _lines(*shown), as_json=as_json)


def _subjects(
    folder: Path, provider: str, precisions: list[str] | None, threads: int | None, draft: str | None
) -> list[Subject]:
    from andrea_export.bundle.contents import read_contents
    from andrea_export.runtime.bench import Subject

    contents = read_contents(folder)
    contents.check()
    built = contents.ort_cpu
    has = tuple(dict.fromkeys(("fp32", *built))) if provider == "cpu" else ("fp32",)
    plain = [
        Subject(bundle=folder, provider=provider, precision=precision, num_threads=threads, is_drawn=draft is not None)
        for precision in (precisions or has)
    ]
    if draft is None:
        return plain
    return [*plain, *(replace(one, draft=draft) for one in plain if one.precision in (precisions or ("fp32",)))]


def _shares(one: Figures, limits: MachineLimits) -> dict[str, float]:
    """Each figure as a share of the machine's limit: decoding of bandwidth, prompts of the fp32 or int8 matrix rate."""
    from andrea_export.runtime.bench import decoded_bytes, prefill_operations, tasks_for

    rate = limits.fp32_flops if one.precision == "fp32" else limits.int8_ops
    shares = {"decode": one.decode * decoded_bytes(one.graph) / limits.read_bytes_s}
    for name, prompts in tasks_for(one.config).items():
        if (median := one.median_ms(name)) is not None:
            operations = prefill_operations(one.config, len(prompts[0]), len(prompts))
            shares[name] = operations / (median / 1e3) / rate
    return shares


def _document(figures: list[Figures], limits: MachineLimits, rounds: int) -> dict[str, Any]:
    from andrea_export.runtime.bench import decoded_bytes

    return {
        "rounds": rounds,
        "limits": asdict(limits),
        "subjects": [
            {
                "bundle": str(one.subject.bundle),
                "name": one.name,
                "precision": one.precision,
                "threads": one.num_threads,
                "load_s": one.load_s,
                "times_ms": {name: one.median_ms(name) for name in one.times_ms},
                "decode_tokens_s": one.decode,
                **_draft_document(one),
                "weight_bytes": decoded_bytes(one.graph),
                "peak_memory_bytes": one.peak_memory_bytes,
                "share_of_limit": _shares(one, limits),
            }
            for one in figures
        ],
    }


def _draft_document(one: Figures) -> dict[str, Any]:
    """What ``--draft`` adds to a subject: its draft, speed in drawn text, and the share of proposed tokens accepted."""
    if not one.subject.is_drawn:
        return {}
    accepted = {"greedy": _accepted(one.decodes), "drawn": _accepted(one.drawn_decodes)}
    return {
        "draft": one.subject.draft,
        "drawn_decode_tokens_s": one.drawn_decode,
        **({} if one.subject.draft is None else {"accepted": accepted}),
    }


def _accepted(decodes: Sequence[Decode]) -> float | None:
    """The share of all rounds' proposed tokens that was accepted; None where the draft was off from the start."""
    num_proposed = sum(one.num_proposed for one in decodes)
    return sum(one.num_accepted for one in decodes) / num_proposed if num_proposed else None


def _with_acceptance(tokens_s: str, decodes: Sequence[Decode]) -> str:
    share = _accepted(decodes)
    return tokens_s if share is None else f"{tokens_s}, {share:.0%} accepted"


def _lines(figures: list[Figures], limits: MachineLimits, rounds: int) -> list[str]:
    names = list(figures[0].times_ms)
    headers = ["model", "load s", *(f"{name.replace('_', ' ')} ms" for name in names), "decode tok/s"]
    headers += [*(["drawn tok/s"] if figures[0].subject.is_drawn else []), "peak memory"]
    rows = []
    for one in figures:
        shares = _shares(one, limits)
        times = [
            f"{median:.1f} ({shares[name]:.0%})" if (median := one.median_ms(name)) is not None else ""
            for name in names
        ]
        decode = _with_acceptance(f"{one.decode:.1f} ({shares['decode']:.0%})", one.decodes)
        drawn = [] if one.drawn_decode is None else [_with_acceptance(f"{one.drawn_decode:.1f}", one.drawn_decodes)]
        name = f"{one.subject.bundle.name}: {one.name}"
        rows.append([name, f"{one.load_s:.2f}", *times, decode, *drawn, size(one.peak_memory_bytes)])
    return [
        f"{figures[0].num_threads} threads: reads {limits.read_bytes_s / 1e9:.1f} GB/s, multiplies "
        f"{limits.fp32_flops / 1e9:.0f} GFLOP/s in fp32, {limits.int8_ops / 1e9:.0f} GOP/s in int8",
        *table(headers, rows),
        f"medians of {rounds} rounds; in brackets: share of the bandwidth (decode) or of the matrix rate (prompts)",
    ]
