"""Everything that has to be there before the measuring: environments, weights, every peer's format of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from peers.contenders import Peer
from peers.prepare import CHECKPOINT, build_our_bundle, write_prompts, write_weights
from peers.worker import prompt_of
from support.held_out import held_out_prompts

HERE = Path(__file__).resolve().parent
ACCURACY_ROWS, ACCURACY_LENGTH = 16, 64
TRAINED_ROWS, TRAINED_LENGTH = 2048, 256
TRAINED = "trained"
"""The folder inside the folder for the trained checkpoint."""


def prepare(peers: Sequence[Peer], folder: Path) -> dict[str, str]:
    """Makes what is not there yet; returns the peers that could not be made, each with its last words."""
    trained = folder / TRAINED
    trained.mkdir(exist_ok=True)
    for place, checkpoint in ((folder, None), (trained, CHECKPOINT)):
        write_weights(place, checkpoint)
        build_our_bundle(place, checkpoint)
    write_prompts(folder, [prompt_of(ACCURACY_LENGTH, row) for row in range(ACCURACY_ROWS)], None)
    write_prompts(trained, held_out_prompts(TRAINED_ROWS, TRAINED_LENGTH), CHECKPOINT)
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


def python_of(peer: Peer, folder: Path) -> str:
    """The interpreter of the peer's own environment; this one where it needs none."""
    return str(folder / "venvs" / peer.name / "bin" / "python") if peer.requirements else sys.executable


def _make_venv(peer: Peer, folder: Path) -> None:
    stamp = folder / "venvs" / peer.name / ".requirements"
    wanted = "\n".join((*peer.requirements, *(f"-{name}" for name in peer.uninstall)))
    if not peer.requirements or (stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted):
        return
    print(f"{peer.name}: making its environment …", file=sys.stderr)
    shutil.rmtree(stamp.parent, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", stamp.parent], check=True)
    pip = [python_of(peer, folder), "-m", "pip", "-q"]
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
        [python_of(peer, folder), "-c", code, str(HERE), peer.module, variant, str(place)],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    stamp.touch()
