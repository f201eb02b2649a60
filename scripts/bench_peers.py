"""Measures andrea-export's runtime against its peers in one run, and writes the table.

    python scripts/bench_peers.py FOLDER [--output docs/measurements/PROCESSOR] [--rounds 5] [--only NAME]

Everything is kept in FOLDER and reused: a virtual environment for each peer, one set of seeded ANDREA-120M weights,
that model in every peer's format, and a bundle; all that again for the small trained checkpoint of the tests. Then
every contender of one precision is started, warmed, and measured in alternating rounds, each in a process of its own,
and afterwards asked for its logits after held-out text. The goals are factors of the best peer in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import numpy as np
from measure.processor import processor_facts
from peers.prepare import CHECKPOINT, build_our_bundle, trained_prompts, write_prompts, write_weights
from peers.report import goals_of, markdown
from peers.worker import prompt_of

from andrea_export.runtime.bench import decoded_bytes
from andrea_export.runtime.cores import num_usable_cores
from andrea_export.runtime.machine import MachineLimits, measure_limits
from andrea_export.targets.ort_cpu.validation import agreement

HERE = Path(__file__).resolve().parent / "peers"
PREFILLS = {"first_token_32": (1, 32), "prefill_128": (1, 128), "prefill_1024": (1, 1023), "prefill_8x128": (8, 128)}
SHORT = 128
"""Prompts up to here are asked for twice, and the second answer counts: what a neighbour left in the processor's caches
would be a good part of the first."""
PAUSE_S = 0.5
"""Before each contender's turn: some runtimes' threads wait for their next run at full speed, for up to a tenth of a
second, on the cores of whoever comes next."""
PROMPT, DECODED = 32, 128
ACCURACY_ROWS, ACCURACY_LENGTH = 16, 64
TRAINED_ROWS, TRAINED_LENGTH = 2048, 256
PRECISIONS = ("fp32", "int8", "int4")
TRAINED = "trained"
"""The folder inside the folder for the trained checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One contender: what its venv is made of, the file that drives it, and a variant for each precision."""

    name: str
    module: str
    variants: dict[str, str]
    requirements: tuple[str, ...] = ()
    """Empty: it runs in this script's own environment."""
    uninstall: tuple[str, ...] = ()
    """What a requirement drags in that breaks its import."""


_TORCH = "torch==2.13.0"
PEERS = (
    Peer(name="andrea", module="andrea", variants={"fp32": "fp32", "int8": "int8", "int4": "int4"}),
    Peer(
        name="openvino",
        module="openvino_peer",
        variants={"fp32": "fp32", "int8": "int8", "int4": "int4"},
        requirements=("openvino==2026.4.1", "optimum-intel==2.2.0", "nncf", _TORCH),
        uninstall=("torchvision",),
    ),
    Peer(
        name="ctranslate2",
        module="ctranslate2_peer",
        variants={"fp32": "fp32", "int8": "int8"},
        requirements=("ctranslate2==4.8.5", "transformers==4.57.6", _TORCH, "numpy"),
    ),
    Peer(
        name="llama.cpp",
        module="llamacpp_peer",
        variants={"fp32": "fp32", "int8": "int8", "int4": "int4"},
        requirements=("llama-cpp-python==0.3.36", "gguf==0.19.0"),
    ),
    Peer(
        name="optimum-onnx",
        module="optimum_peer",
        variants={"fp32": "fp32", "int8": "int8"},
        requirements=("optimum-onnx[onnxruntime]==0.1.0", _TORCH),
    ),
    Peer(name="torch eager", module="torch_peer", variants={"fp32": "eager"}),
    Peer(name="torch compiled", module="torch_peer", variants={"fp32": "compiled"}),
)


@dataclass(slots=True, kw_only=True)
class Contender:
    """A running worker and what it has answered."""

    peer: Peer
    precision: str
    process: subprocess.Popen[str]
    load_s: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)
    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    problem: str = ""
    """Why there are no figures, or not all."""
    accuracy_problem: str = ""
    """Why there is no accuracy; the figures stand."""

    def stop(self) -> None:
        """Ends the process, by force if it does not go by itself."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, command: str) -> dict[str, Any]:
        """One answer. Raises RuntimeError if the worker is gone."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("the worker is gone") from None
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next line. Raises RuntimeError if there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the worker is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    """Prepares what is missing, measures, writes JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, help="a folder; left out: FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="a peer's name; repeat it")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=num_usable_cores())
    parser.add_argument("--prepare-only", action="store_true")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    peers = [peer for peer in PEERS if not options.only or peer.name in (*options.only, "andrea")]
    problems = _prepare(peers, folder)
    if options.prepare_only:
        sys.exit(f"not prepared: {problems}" if problems else 0)
    begin, load_before = time.perf_counter(), os.getloadavg()
    measured: list[Contender] = []
    limits: list[MachineLimits] = []
    for precision in options.precision or PRECISIONS:
        measured += _measure([peer for peer in peers if peer.name not in problems], precision, folder, options, limits)
    document = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": processor_facts(),
        "threads": options.threads,
        "rounds": options.rounds,
        "trained": {"checkpoint": CHECKPOINT.name, "prompts": TRAINED_ROWS, "longest": TRAINED_LENGTH},
        "minutes": (time.perf_counter() - begin) / 60,
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "limits": {
            entry.name: statistics.median(getattr(one, entry.name) for one in limits)
            for entry in fields(MachineLimits)
        },
        "limits_of_each_round": [asdict(one) for one in limits],
        "decoded_bytes": {
            precision: decoded_bytes(folder / "bundle" / f"ort-cpu-{precision}.onnx")
            for precision in options.precision or PRECISIONS
        },
        "not_prepared": problems,
        "contenders": [_row(one) for one in measured],
    }  # fmt: skip
    document["goals"] = goals_of(document)
    output = options.output or folder
    output.mkdir(parents=True, exist_ok=True)
    (output / "peers.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (output / "peers.md").write_text(markdown(document), encoding="utf-8")
    print(markdown(document))


def _prepare(peers: Sequence[Peer], folder: Path) -> dict[str, str]:
    """Makes what is not there yet; returns the peers that could not be made, each with its last words."""
    trained = folder / TRAINED
    trained.mkdir(exist_ok=True)
    for place, checkpoint in ((folder, None), (trained, CHECKPOINT)):
        write_weights(place, checkpoint)
        build_our_bundle(place, checkpoint)
    write_prompts(folder, [prompt_of(ACCURACY_LENGTH, row) for row in range(ACCURACY_ROWS)], None)
    write_prompts(trained, trained_prompts(TRAINED_ROWS, TRAINED_LENGTH), CHECKPOINT)
    problems = {}
    for peer in peers:
        try:
            _make_venv(peer, folder)
            for variant in peer.variants.values():
                _convert(peer, variant, folder, folder)
        except subprocess.CalledProcessError as error:
            problems[peer.name] = _last_words(error)
            print(f"{peer.name}: {problems[peer.name]}", file=sys.stderr)
            continue
        for variant in peer.variants.values():
            try:
                _convert(peer, variant, folder, trained)
            except subprocess.CalledProcessError as error:  # its accuracy will be missing, and the table says so
                print(f"{peer.name}, trained model: {_last_words(error)}", file=sys.stderr)
    return problems


def _last_words(error: subprocess.CalledProcessError) -> str:
    return (str(error.stderr or error).strip().splitlines() or [""])[-1]


def _python(peer: Peer, folder: Path) -> str:
    return str(folder / "venvs" / peer.name / "bin" / "python") if peer.requirements else sys.executable


def _make_venv(peer: Peer, folder: Path) -> None:
    stamp = folder / "venvs" / peer.name / ".requirements"
    wanted = "\n".join((*peer.requirements, *(f"-{name}" for name in peer.uninstall)))
    if not peer.requirements or (stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted):
        return
    print(f"{peer.name}: making its environment …", file=sys.stderr)
    shutil.rmtree(stamp.parent, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", stamp.parent], check=True)
    pip = [_python(peer, folder), "-m", "pip", "-q"]
    subprocess.run([*pip, "install", *peer.requirements], check=True, stderr=subprocess.PIPE, text=True)
    if peer.uninstall:
        subprocess.run([*pip, "uninstall", "-y", *peer.uninstall], check=True, stderr=subprocess.PIPE, text=True)
    stamp.write_text(wanted, encoding="utf-8")


def _convert(peer: Peer, variant: str, folder: Path, place: Path) -> None:
    """One model in a peer's format; ``place`` holds the weights and takes the result."""
    stamp = place / f".converted-{peer.module}-{variant}"
    if not peer.requirements or stamp.exists():
        return
    print(f"{peer.name}: converting {variant} …", file=sys.stderr)
    code = "import importlib, pathlib, sys; sys.path.insert(0, sys.argv[1]); "
    code += "importlib.import_module(sys.argv[2]).convert(sys.argv[3], pathlib.Path(sys.argv[4]))"
    subprocess.run(
        [_python(peer, folder), "-c", code, str(HERE), peer.module, variant, str(place)],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    stamp.touch()


def _measure(
    peers: Sequence[Peer], precision: str, folder: Path, options: argparse.Namespace, limits: list[MachineLimits]
) -> list[Contender]:
    """All contenders of one precision, started one after the other, then measured in turns.

    What the machine can do is measured in every round too, into ``limits``: on a shared one it comes and goes.
    """
    contenders = [
        _start(peer, precision, folder, folder, options.threads) for peer in peers if precision in peer.variants
    ]
    try:
        for one in contenders:
            _try(one, "load", partial(_loaded, one))
            _try(one, "warm", partial(_ask_all, one, keep=False))
        for number in range(options.rounds):
            print(f"{precision}: round {number + 1} of {options.rounds}", file=sys.stderr)
            limits.append(measure_limits(options.threads))
            # The order turns by one every round, so that nobody always follows the same neighbour.
            turn = number % len(contenders)
            for one in [*contenders[turn:], *contenders[:turn]]:
                _try(one, "measure", partial(_ask_all, one, keep=True))
        for one in contenders:
            _try(one, "memory", partial(_keep_memory, one))
            _try_accuracy(one, "seeded weights", partial(_keep_accuracy, one, one, folder, "seeded"))
    finally:
        for one in contenders:
            one.stop()
    for one in contenders:
        _try_accuracy(one, "trained model", partial(_keep_trained, one, folder, options.threads))
    return contenders


def _keep_trained(one: Contender, folder: Path, threads: int) -> None:
    """The same contender's accuracy on the trained checkpoint, in another process. Raises RuntimeError."""
    other = _start(one.peer, one.precision, folder, folder / TRAINED, threads)
    try:
        other.hear()
        _keep_accuracy(one, other, folder / TRAINED, "trained")
    finally:
        other.stop()


def _start(peer: Peer, precision: str, folder: Path, place: Path, threads: int) -> Contender:
    """A worker in the peer's environment (in ``folder``), on the model that is in ``place``."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "") if not peer.requirements else ""
    process = subprocess.Popen(
        [
            _python(peer, folder), str(HERE / "worker.py"),
            peer.module, peer.variants[precision], str(place), str(threads),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(place / f"{peer.name}-{precision}.log").open("w", encoding="utf-8"),
        text=True,
        env=environment,
    )  # fmt: skip
    return Contender(peer=peer, precision=precision, process=process)


def _loaded(one: Contender) -> None:
    answer = one.hear()
    one.load_s, one.versions = answer["load_s"], answer["versions"]


def _ask_all(one: Contender, *, keep: bool) -> None:
    """Every figure once; kept, or only to warm up."""
    time.sleep(PAUSE_S)
    for name, (rows, length) in PREFILLS.items():
        answer = one.ask(f"prefill {rows} {length}")
        if rows * length <= SHORT:
            answer = one.ask(f"prefill {rows} {length}")
        if keep:
            one.figures.setdefault(name, []).append(answer["ms"])
    answer = one.ask(f"decode {PROMPT} {DECODED}")
    if keep:
        one.figures.setdefault("decode", []).append(answer["tokens_s"])


def _keep_memory(one: Contender) -> None:
    one.figures["peak"] = [one.ask("memory")["peak_bytes"]]


def _keep_accuracy(one: Contender, asked: Contender, place: Path, key: str) -> None:
    """How far the next-token logits after the prompts in ``place`` are from torch's in fp32."""
    file = place / f"logits-{asked.peer.module}-{asked.precision}.npy"
    asked.ask(f"logits {file}")
    expected, found = np.load(place / "reference.npy"), np.load(file)
    # A peer may have rounded the vocabulary up; what it added is no token.
    found = found[:, : expected.shape[1]]
    got = agreement(expected, found)
    largest = float(np.abs(expected - found).max())
    one.accuracy[key] = {"kl_mean": got.kl_mean, "top1": got.top1, "max_abs": largest}


def _try(one: Contender, stage: str, action: Callable[[], object]) -> None:
    """One stage of a contender that is still well; what goes wrong is its problem, not the run's."""
    if not one.problem:
        one.problem = _problem_of(one, stage, action)


def _try_accuracy(one: Contender, stage: str, action: Callable[[], object]) -> None:
    """As ``_try``, where a failure leaves the figures standing: nobody leaves the goals by it."""
    if not one.problem and not one.accuracy_problem:
        one.accuracy_problem = _problem_of(one, stage, action)


def _problem_of(one: Contender, stage: str, action: Callable[[], object]) -> str:
    try:
        action()
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        problem = f"{stage}: {error}"
        print(f"{one.peer.name} {one.precision}: {problem}", file=sys.stderr)
        return problem
    return ""


def _row(one: Contender) -> dict[str, Any]:
    return {
        "name": one.peer.name,
        "precision": one.precision,
        "versions": one.versions,
        "load_s": one.load_s,
        "problem": one.problem,
        "accuracy_problem": one.accuracy_problem,
        "accuracy": one.accuracy,
        "medians": {name: statistics.median(values) for name, values in one.figures.items()},
        "rounds": one.figures,
    }


if __name__ == "__main__":
    main()
