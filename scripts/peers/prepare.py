"""Who is compared: what each peer's environment is made of, the file that drives it, its variants; and the models that
all contenders run, as transformers' GPT-2, as a bundle and in every peer's own format.

Seeded ANDREA-120M weights are what is timed; the small trained checkpoint of the tests is what accuracy is measured on,
for on random weights a token's place in the order of all means little.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.build.build import build_bundle
from andrea_export.core.progress import Silent
from andrea_export.targets.recipe import recipe_from_mapping
from andrea_export.weights.load import LoadedModel, load_model
from peers.worker import prompt_of
from support.held_out import held_out_prompts
from support.paths import FIXTURES

PRESET, SEED = "andrea-120m", 0
CHECKPOINT = FIXTURES / "austen.safetensors"
_OUTSIDE = {"token_embed": "wte", "position_embed": "wpe", "ln_f": "ln_f"}
_NAMES = {"attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj"}


def load_weights(checkpoint: Path | None) -> LoadedModel:
    """The checkpoint, or the seeded 120M weights where there is none."""
    return load_model(preset=None if checkpoint else PRESET, checkpoint=checkpoint, seed=SEED)


def write_weights(folder: Path, checkpoint: Path | None) -> None:
    """``hf/`` with weights, configuration and a tokenizer of made-up words, and ``weights.npz`` under GPT-2's names."""
    target = folder / "hf"
    if (target / "config.json").exists():
        return
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    loaded = load_weights(checkpoint)
    ours = loaded.config
    config: Any = GPT2Config(
        vocab_size=ours.vocab_size,
        n_positions=ours.n_ctx,
        n_embd=ours.d_model,
        n_layer=ours.n_layer,
        n_head=ours.n_head,
        n_inner=ours.mlp_dim,
        activation_function="gelu_new",
        layer_norm_epsilon=ours.layer_norm_epsilon,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = GPT2LMHeadModel(config)
    weights = {_gpt2_name(name): parameter.detach() for name, parameter in loaded.model.named_parameters()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.save_pretrained(target)
    words = Tokenizer(WordLevel({f"t{token}": token for token in range(ours.vocab_size)}, unk_token="t0"))
    words.pre_tokenizer = Whitespace()
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=words, unk_token="t0", bos_token="t0", eos_token="t0")
    tokenizer.save_pretrained(target)
    # transformers 5 names a class that 4, which some peers pin, does not have.
    described = target / "tokenizer_config.json"
    values = json.loads(described.read_text(encoding="utf-8"))
    described.write_text(json.dumps({**values, "tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in weights.items()}
    np.savez(folder / "weights.npz", **arrays)


def write_prompts(folder: Path, prompts: list[list[int]], checkpoint: Path | None) -> None:
    """``prompts.json``, and torch's next-token logits in fp32 after each, ``reference.npy`` ``[prompts, V]``."""
    import torch

    file = folder / "prompts.json"
    content = json.dumps(prompts)
    if (folder / "reference.npy").exists() and file.exists() and file.read_text(encoding="utf-8") == content:
        return
    model = load_weights(checkpoint).model
    with torch.inference_mode():
        rows = [model(torch.tensor([prompt]))[0][0, -1].numpy() for prompt in prompts]
    np.save(folder / "reference.npy", np.stack(rows))
    file.write_text(content, encoding="utf-8")


def build_our_bundle(folder: Path, checkpoint: Path | None) -> None:
    """``bundle/`` in every precision of the CPU graphs; built again where the one there was made by other code."""
    values = {"targets": ["onnx", "ort-cpu"], "precisions": ["fp32", "int8", "int4"]}
    build_bundle(
        folder / "bundle",
        recipe_from_mapping(values if checkpoint else {**values, "preset": PRESET, "seed": SEED}, where="bench_peers"),
        checkpoint=checkpoint,
        force=False,
        cache_dir=folder / "cache",
        progress=Silent(),
    )


def _gpt2_name(name: str) -> str:
    if name.startswith("blocks."):
        _, index, rest = name.split(".", 2)
        layer, _, kind = rest.rpartition(".")
        return f"transformer.h.{index}.{_NAMES.get(layer, layer)}.{kind}"
    module, _, kind = name.rpartition(".")
    return f"transformer.{_OUTSIDE[module]}.{kind}"


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


PRECISIONS = ("fp32", "int8", "int4")


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
