"""One contender in a process of its own: loads, then answers one JSON line a command. Runs in the contender's own venv.

    worker.py MODULE VARIANT FOLDER THREADS

MODULE is a file beside this one with VERSIONS, of what runs, and ``load(variant, folder, threads)``, which returns an
object with ``prefill(rows)`` (waits for the next-token logits of every row), ``logits(rows)`` (those, ``[rows, V]``)
and ``decode(prompt, number)`` (greedy; seconds to the first and to the last token). Commands on stdin: ``prefill ROWS
LENGTH``, ``decode PROMPT NUMBER``, ``memory``, ``logits FILE``: those after every prompt in FOLDER's prompts.json.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 8449


def main() -> None:
    """Serves until stdin ends."""
    name, variant, folder, threads = sys.argv[1:5]
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints must not look like an answer
    sys.path.insert(0, str(Path(__file__).parent))
    module = importlib.import_module(name)
    begin = time.perf_counter()
    contender = module.load(variant, Path(folder), int(threads))
    _answer(answers, {"load_s": time.perf_counter() - begin, "versions": module.VERSIONS})
    for line in sys.stdin:
        command, *words = line.split()
        if command == "logits":
            prompts = json.loads((Path(folder) / "prompts.json").read_text(encoding="utf-8"))
            # One at a time, as texts are generated.
            np.save(words[0], np.concatenate([np.array(contender.logits([prompt])) for prompt in prompts]))
            _answer(answers, {})
        else:
            _answer(answers, _obey(contender, command, [int(word) for word in words]))


def prompt_of(length: int, row: int = 0) -> list[int]:
    """The same tokens for every contender: spread over the vocabulary, other ones in every row."""
    return [(7919 * (row + 1) + 104729 * place) % VOCABULARY for place in range(length)]


def _obey(contender: Any, command: str, numbers: list[int]) -> dict[str, float]:
    if command == "memory":
        return {"peak_bytes": _peak_bytes()}
    if command == "prefill":
        rows = [prompt_of(numbers[1], row) for row in range(numbers[0])]
        begin = time.perf_counter()
        contender.prefill(rows)
        return {"ms": (time.perf_counter() - begin) * 1e3}
    first, last = contender.decode(prompt_of(numbers[0]), numbers[1])
    return {"tokens_s": (numbers[1] - 1) / (last - first)}


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def _answer(stream: Any, document: dict[str, Any]) -> None:
    stream.write(json.dumps(document) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
