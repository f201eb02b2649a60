"""``run`` and ``bench`` on the CPU graphs: text, sampling, streams, and every refusal in one line."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from andrea_export.cli.options import tokens_from_prompt
from andrea_export.cli.output import emit
from andrea_export.core.errors import UsageError
from andrea_export.tokens.tokenizer import BYTES
from tests.conftest import Andrea, Outcome


def refused(outcome: Outcome, code: int = 2) -> str:
    assert outcome.code == code, outcome.stderr
    assert outcome.stdout == ""
    return outcome.error


def test_text_in_and_text_out(andrea: Andrea, ort_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = andrea("run", ort_bundle, "--prompt", "héllo", "--max-new-tokens", 8, "--json")
    assert outcome.code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert document["prompt"] == list("héllo".encode())
    assert (document["graph"], document["precision"]) == ("ort-cpu-fp32.onnx", "fp32")
    streamed = andrea("run", ort_bundle, "--prompt", "héllo", "--max-new-tokens", 8)
    emit(document["text"])  # control characters become escapes, whoever writes them
    assert streamed.stdout == capsys.readouterr().out
    same = andrea("run", ort_bundle, "--tokens", ",".join(map(str, document["prompt"])), "--max-new-tokens", 8)
    assert same.stdout == ",".join(map(str, document["tokens"])) + "\n"


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_sampling_repeats_with_its_seed(andrea: Andrea, ort_bundle: Path, precision: str) -> None:
    options = ("--tokens", "5,17", "--max-new-tokens", 20, "--temperature", 1.5, "--top-k", 40, "--top-p", 0.95)
    first, again, other = (
        andrea("run", ort_bundle, "--precision", precision, *options, "--seed", seed) for seed in (7, 7, 8)
    )
    assert first.code == 0 and first.stdout == again.stdout != other.stdout
    assert f"onnxruntime-cpu (ort-cpu-{precision}" in first.stderr


def test_a_stop_token_ends_the_text(andrea: Andrea, ort_bundle: Path) -> None:
    tokens = andrea("run", ort_bundle, "--tokens", "5,17", "--max-new-tokens", 9).stdout.strip().split(",")
    stopped = andrea("run", ort_bundle, "--tokens", "5,17", "--max-new-tokens", 9, "--stop", tokens[-1])
    assert stopped.stdout.strip() == ",".join(tokens[: tokens.index(tokens[-1])])
    at_once = andrea("run", ort_bundle, "--tokens", "5,17", "--max-new-tokens", 9, "--stop", tokens[0])
    assert (at_once.code, at_once.stdout) == (0, "\n")
    assert "ended the text at once" in at_once.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "give the prompt by --prompt or by --tokens"),
        (("--tokens", "5", "--prompt", "a"), "by one of them only"),
        (("--prompt", ""), "--prompt is empty"),
        (("--prompt", "\udcff"), "--prompt is not valid text"),
        (("--prompt=a\udcff",), "--prompt is not valid text"),
        (("--tokens", "5", "--threads", "100000"), "100000 threads asked for, expected 1 to"),
        (("--tokens", "5", "--temperature", "0"), "temperature is 0"),
        (("--tokens", "5", "--temperature", "nan"), "temperature is nan"),
        (("--tokens", "5", "--temperature", "1", "--top-p", "0"), "top-p is 0"),
        (("--tokens", "5", "--temperature", "1", "--top-p", "1.01"), "top-p is 1.01"),
        (("--tokens", "5", "--temperature", "1", "--top-k", "0"), "top-k is 0"),
        (("--tokens", "5", "--top-k", "3"), "need a temperature"),
        (("--tokens", "5", "--stop", "400"), "stop token 400"),
        (("--tokens", "5", "--seed", "-1"), "seed is -1"),
        (("--tokens", "5", "--threads", "0"), "0 threads"),
    ],
)
def test_what_run_refuses(andrea: Andrea, ort_bundle: Path, options: Sequence[str], text: str) -> None:
    assert text in refused(andrea("run", ort_bundle, *options))


@pytest.mark.parametrize(
    ("text", "vocabulary", "problem"),
    [("", 257, "is empty"), ("a", 255, "at least 256"), ("\udc80", 257, "not valid text")],
)
def test_texts_that_cannot_be_a_prompt(text: str, vocabulary: int, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        tokens_from_prompt(text, vocabulary, BYTES)


def test_a_precision_that_was_not_built(andrea: Andrea, built_bundle: Path) -> None:
    outcome = andrea("run", built_bundle, "--tokens", "5", "--precision", "int4")
    assert "has no int4 (it has fp32)" in refused(outcome)
    assert outcome.hint == "build it with --target ort-cpu --precision int4"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--target", "onnx", "--precision", "int8"), "no target of this recipe comes in int8"),
        (("--target", "ort-cpu", "--precision", "fp16"), "no target of this recipe comes in fp16"),
        (("--target", "tensorrt", "--precision", "int4"), "no target of this recipe comes in int4"),
    ],
)
def test_precisions_no_target_comes_in(andrea: Andrea, tmp_path: Path, options: Sequence[str], text: str) -> None:
    assert text in refused(andrea("build", tmp_path / "out", "--preset", "andrea-tiny", *options))
    assert not (tmp_path / "out").exists()


def test_layers_to_keep_that_are_none(andrea: Andrea, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'preset = "andrea-tiny"\ntargets = ["onnx", "ort-cpu"]\nprecisions = ["int4"]\n'
        '[ort_cpu]\nint4_keep = ["mlp.proj", "blocks.9.mlp.fc"]\n'
    )
    outcome = andrea("build", tmp_path / "out", "--recipe", recipe)
    assert "int4_keep: the model has no linear layer blocks.9.mlp.fc" in outcome.error
    assert outcome.code == 2


def started(*arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "andrea_export", *map(str, arguments)],
        stdout=stdout,
        # Under nohup or in a script's background it is ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def waiting(pipe: int) -> int:
    """How many bytes there are to read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


LONG = ("--tokens", "5,17", "--max-new-tokens", "1000", "--temperature", "1", "--threads", "1")


def test_ctrl_c_stops_cleanly(ort_bundle: Path) -> None:
    """The pipe has room for a few tokens, so that the text cannot be at its end before the signal comes."""
    output, into = os.pipe()
    filled = fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE) - 96
    os.write(into, bytes(filled))
    process = started("run", ort_bundle, *LONG, stdout=into)
    os.close(into)
    while process.poll() is None and waiting(output) <= filled:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    with os.fdopen(output, "rb") as rest:
        rest.read()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in stderr and b"error: interrupted" in stderr


def test_ctrl_c_before_the_tool_is_there_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, sys.path)))}
    command = [sys.executable, "-m", "andrea_export", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_ctrl_c_before_the_command_is_known_is_no_traceback(andrea: Andrea, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_app: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    outcome = andrea("run", "nowhere", "--json")
    assert outcome.code == 130 and json.loads(outcome.stdout)["error"] == "interrupted"


def test_a_closed_pipe_is_no_traceback(ort_bundle: Path) -> None:
    with started("run", ort_bundle, *LONG) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(2)
        process.stdout.close()
        stderr = process.stderr.read()
        assert process.wait(timeout=120) == 141
    assert b"Traceback" not in stderr and b"error" not in stderr


def test_bench_measures_every_precision(andrea: Andrea, ort_bundle: Path) -> None:
    outcome = andrea("bench", ort_bundle, "--rounds", 1, "--json")
    assert outcome.code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert [subject["precision"] for subject in document["subjects"]] == ["fp32", "int8", "int4"]
    assert all(value > 0 for value in document["limits"].values())
    for subject in document["subjects"]:
        assert set(subject["times_ms"]) == {"first_token", "prefill_128", "prefill_1024", "prefill_8x128"}
        assert subject["decode_tokens_s"] > 0 and subject["peak_memory_bytes"] > 1e7
        assert all(share > 0 for share in subject["share_of_limit"].values())
    bytes_of = [subject["weight_bytes"] for subject in document["subjects"]]
    assert bytes_of[0] > bytes_of[1] > bytes_of[2]


def test_bench_against_another_bundle_as_a_table(andrea: Andrea, ort_bundle: Path, built_bundle: Path) -> None:
    outcome = andrea("bench", ort_bundle, "--against", built_bundle, "--precision", "fp32", "--rounds", 1)
    assert outcome.code == 0, outcome.stderr
    assert "GB/s" in outcome.stdout
    assert "(ort-cpu-fp32)" in outcome.stdout and "(model)" in outcome.stdout


@pytest.mark.parametrize(("options", "text"), [(("--rounds", "0"), "--rounds is 0"), (("--threads", "0"), "0 threads")])
def test_what_bench_refuses(andrea: Andrea, ort_bundle: Path, options: Sequence[str], text: str) -> None:
    assert text in refused(andrea("bench", ort_bundle, *options))


def test_bench_without_the_precision(andrea: Andrea, built_bundle: Path) -> None:
    assert "has no int8" in refused(andrea("bench", built_bundle, "--precision", "int8"))


@pytest.mark.parametrize("options", [(), ("--temperature", 1.2, "--top-k", 40, "--seed", 3)])
def test_a_draft_changes_no_text_and_is_spoken_of(andrea: Andrea, ort_bundle: Path, options: Sequence[object]) -> None:
    run = ("run", ort_bundle, "--provider", "cpu", "--tokens", "5,17", "--max-new-tokens", 120, *options)
    plain, drafted = andrea(*run), andrea(*run, "--draft", "int4")
    assert (drafted.code, drafted.stdout) == (0, plain.stdout)
    assert re.search(
        r"draft int4: \d+ of \d+ proposed tokens accepted in \d+ runs, \d+ tokens by single steps", drafted.stderr
    )
    assert "draft" not in plain.stderr
    document = json.loads(andrea(*run, "--draft", "int4", "--json").stdout)
    assert ",".join(map(str, document["tokens"])) + "\n" == plain.stdout
    assert document["draft"]["precision"] == "int4" and document["draft"]["num_verified"] >= 3


def test_a_draft_that_is_switched_off_is_spoken_of(
    andrea: Andrea, ort_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andrea_export.runtime.pace.Pace.cost", 3.0)
    outcome = andrea("run", ort_bundle, "--tokens", "5,17", "--max-new-tokens", 30, "--draft", "int4")
    assert "note: draft int4 switched off: 80% of its tokens are accepted, and one costs 300%" in outcome.stderr


@pytest.mark.parametrize(
    ("options", "text", "hint"),
    [
        (("--draft", "fp32"), "fp32 is no cheaper than fp32", "from dear to cheap"),
        (("--draft", "int4", "--provider", "cuda"), "provider cuda takes no draft", "use --provider cpu"),
    ],
)
def test_what_run_refuses_as_a_draft(
    andrea: Andrea, ort_bundle: Path, options: Sequence[str], text: str, hint: str
) -> None:
    outcome = andrea("run", ort_bundle, "--tokens", "5", *options)
    assert text in refused(outcome) and hint in str(outcome.hint)


def test_bench_with_a_draft_and_without(andrea: Andrea, ort_bundle: Path) -> None:
    options = ("--precision", "fp32", "--draft", "int4", "--rounds", 1)
    plain, drafted = json.loads(andrea("bench", ort_bundle, *options, "--json").stdout)["subjects"]
    assert (plain["draft"], drafted["draft"]) == (None, "int4")
    assert plain["drawn_decode_tokens_s"] > 0 and drafted["drawn_decode_tokens_s"] > 0
    assert "accepted" not in plain
    # A few tokens at least are proposed in every text, before it is known whether that pays.
    assert set(drafted["accepted"]) == {"greedy", "drawn"} and all(
        0 <= one <= 1 for one in drafted["accepted"].values()
    )
    table = andrea("bench", ort_bundle, *options).stdout
    assert "drawn tok/s" in table and "(ort-cpu-fp32), drafted in int4" in table and "% accepted" in table
