"""Latency, throughput and memory of bundles, each alone in a process of its own, in alternating rounds.

Owns what is measured and how often; ``machine.py`` owns the limits that the figures are shares of.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.core.errors import AndreaError, RunError
from andrea_export.runtime.loading import load
from andrea_export.runtime.model import Model
from andrea_export.runtime.sampling import Sampling
from andrea_model.config import AndreaConfig

PREFILLS = (128, 1024)
BATCH, BATCH_LENGTH = 8, 128
PROMPT, DECODED = 32, 128
ROUNDS = 5
_SETTLE_S = 0.2
"""Between turns: the threads of the last one wait for more at full speed for a while, and would hold the next one's."""
_START_S = 600  # a process that has not answered by then is stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One thing to measure: a bundle in one precision on one provider."""

    bundle: Path
    provider: str
    precision: str | None
    num_threads: int | None
    draft: str | None = None
    """The cheaper precision that proposes its tokens."""
    is_drawn: bool = False
    """Whether text drawn at temperature 1 is decoded too: what comes next is harder to propose there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """One text's decoding rate after its first token, and how its draft did, if it had one."""

    tokens_s: float
    num_proposed: int
    num_accepted: int


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was measured of one subject: medians over the rounds; times in milliseconds."""

    subject: Subject
    name: str
    precision: str
    num_threads: int
    config: AndreaConfig
    load_s: float
    graph: Path
    """The file that decodes."""
    times_ms: dict[str, list[float]] = field(default_factory=dict)
    decodes: list[Decode] = field(default_factory=list)
    """Greedy text."""
    drawn_decodes: list[Decode] = field(default_factory=list)
    """Text drawn at temperature 1, of a subject that ``is_drawn``."""
    peak_memory_bytes: int = 0

    def median_ms(self, name: str) -> float | None:
        """The median of one timing; None where it was not taken (a context too short)."""
        return statistics.median(self.times_ms[name]) if self.times_ms.get(name) else None

    @property
    def decode(self) -> float:
        """The median of the decoding rates, in tokens a second."""
        return statistics.median(one.tokens_s for one in self.decodes)

    @property
    def drawn_decode(self) -> float | None:
        """The same of drawn text; None where none was drawn."""
        return statistics.median(one.tokens_s for one in self.drawn_decodes) if self.drawn_decodes else None


def tasks_for(config: AndreaConfig) -> dict[str, list[list[int]]]:
    """Timing → the prompts whose next-token logits it waits for. Those that do not fit the context are left out."""
    random = np.random.default_rng(0)

    def rows(number: int, length: int) -> list[list[int]]:
        return [[int(token) for token in row] for row in random.integers(0, config.vocab_size, (number, length))]

    wanted = {
        "first_token": (1, PROMPT),
        **{f"prefill_{length}": (1, length) for length in PREFILLS},
        f"prefill_{BATCH}x{BATCH_LENGTH}": (BATCH, BATCH_LENGTH),
    }
    # One place is left for the token that the prompt is for.
    return {
        name: rows(number, min(length, config.n_ctx - 1))
        for name, (number, length) in wanted.items()
        if length <= config.n_ctx
    }


def prefill_operations(config: AndreaConfig, length: int, num_rows: int = 1) -> int:
    """Operations of the linear layers for prompts of this length, one row of logits each (attention not counted)."""
    num_block_weights = config.n_layer * config.d_model * (4 * config.d_model + 2 * config.mlp_dim)
    return 2 * num_rows * (length * num_block_weights + config.vocab_size * config.d_model)


def measure(subjects: Sequence[Subject], *, rounds: int, on_round: Callable[[int], None]) -> list[Figures]:
    """The figures of every subject. In each round every subject takes its turn, so that a busy minute hits them all.

    Raises: whatever ``load`` raises for a subject, RunError if one dies.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share the parent's threads and memory
    workers = []
    try:
        for subject in subjects:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, subject), daemon=True)
            process.start()
            there.close()
            workers.append((process, here))
        figures = [_answer(here) for _, here in workers]
        for number in range(rounds):
            on_round(number)
            for (_, here), one in zip(workers, figures, strict=True):
                time.sleep(_SETTLE_S)
                here.send("round")
                times_ms, decode, drawn, peak = _answer(here)
                for name, value in times_ms.items():
                    one.times_ms.setdefault(name, []).append(value)
                one.decodes.append(decode)
                one.drawn_decodes += drawn
                one.peak_memory_bytes = peak
        return figures
    finally:
        for process, here in workers:
            here.close()
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()


def _answer(here: Connection) -> Any:
    try:
        if not here.poll(_START_S):
            raise RunError(f"a benchmark process has not answered in {_START_S} s")
        answer = here.recv()
    except EOFError:
        raise RunError("a benchmark process died", hint="is there enough memory?") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _serve(there: Connection, subject: Subject) -> None:
    """The child: loads, says so, then takes a round whenever asked, until the parent hangs up."""
    try:
        begin = time.perf_counter()
        model = load(
            subject.bundle,
            provider=subject.provider,
            precision=subject.precision,
            draft=subject.draft,
            num_threads=subject.num_threads,
            verify=False,
        )
        load_s = time.perf_counter() - begin
        with model:
            there.send(
                Figures(
                    subject=subject,
                    name=model.name,
                    precision=model.precision,
                    num_threads=model.num_threads,
                    config=model.config,
                    load_s=load_s,
                    graph=subject.bundle / model.graph,
                )
            )
            _round(model, subject)  # warm
            while there.recv() == "round":
                there.send(_round(model, subject))
    except AndreaError as error:
        there.send(error)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):  # Ctrl-C reaches the whole group; the parent speaks of it
        return


def _round(model: Model, subject: Subject) -> tuple[dict[str, float], Decode, list[Decode], int]:
    times_ms = {}
    tasks = tasks_for(model.config)
    for name, prompts in tasks.items():
        begin = time.perf_counter()
        model.prefill(prompts)
        times_ms[name] = (time.perf_counter() - begin) * 1e3
    prompt = tasks["first_token"][0]
    decode = _decode(model, prompt, Sampling())
    drawn = [_decode(model, prompt, Sampling(temperature=1.0))] if subject.is_drawn else []
    return times_ms, decode, drawn, peak_memory_bytes()


def _decode(model: Model, prompt: Sequence[int], sampling: Sampling) -> Decode:
    number = min(DECODED, model.config.n_ctx - len(prompt))
    stamps = []
    for _ in model.generate(prompt, max_new_tokens=number, sampling=sampling):
        stamps.append(time.perf_counter())
    record = None if model.draft is None else model.draft.record
    return Decode(
        tokens_s=(number - 1) / (stamps[-1] - stamps[0]),
        num_proposed=0 if record is None else record.num_proposed,
        num_accepted=0 if record is None else record.num_accepted,
    )


def decoded_bytes(graph_file: Path) -> int:
    """Bytes of weights that a decoded token reads: every initializer but the embeddings, of which it reads one row."""
    import onnx_ir as ir

    graph = ir.load(graph_file).graph
    total = 0
    for value in graph.initializers.values():
        readers = {use.node.op_type for use in value.uses()}
        if value.const_value is not None and not readers <= {"Gather", "GatherBlockQuantized"}:
            total += value.const_value.nbytes
    return total


def peak_memory_bytes() -> int:
    """The largest resident size this process has had. Source: proc(5), VmHWM; elsewhere getrusage, in its unit."""
    try:
        for line in Path(f"/proc/{os.getpid()}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no procfs on this system
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
