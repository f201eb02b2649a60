"""Trains the small ANDREA that tests use where random weights would hide what matters; writes it, its text and its log.

    python scripts/train_fixture.py Rdata.rdb [--output tests/fixtures] [--steps 1000]

Byte tokens: a byte's id is its value, 256 ends a text. The text is Jane Austen's six novels (see ``austen.py`` for
the package); the first pages of "Persuasion" are held out, and committed beside the weights so that perplexity can be
measured anywhere. Deterministic: one generator, one thread, torch's deterministic kernels; the same machine and torch
give the same bytes, another processor may round otherwise.

Most steps take short windows at random positions, so that all 1024 position embeddings are trained at the price of
short attention; the last ones take whole contexts. Matrices are stored as fp16, and the held-out perplexity in the log
is that of the stored file.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import checkout  # noqa: F401
import torch
import torch.nn.functional as F
from fixture.austen import novels_from_rdb

from andrea_export.weights.load import load_model, save_checkpoint
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea, build_model

CONFIG = AndreaConfig(d_model=128, n_head=4, n_layer=4, n_ctx=1024, vocab_size=257, mlp_dim=512)
END_OF_TEXT = 256
HELD_OUT_NOVEL, NUM_HELD_OUT = b"Persuasion", 16_384
SEED, NUM_THREADS = 7, 1
PEAK_RATE, WARM_UP = 2e-3, 60
SHORT, LONG, NUM_TOKENS_A_STEP, LONG_SHARE = 128, 1024, 2048, 0.15
WEIGHTS, TEXT, LOG = "austen.safetensors", "austen_held_out.txt", "austen.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Training tokens, and the bytes that no step sees."""

    tokens: torch.Tensor
    held_out: bytes


def main() -> None:
    """Trains and writes; progress goes to stderr and, without times, to the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="Rdata.rdb of r-cran-janeaustenr")
    parser.add_argument("--output", type=Path, default=Path("tests/fixtures"))
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    torch.use_deterministic_algorithms(True)
    options.output.mkdir(parents=True, exist_ok=True)
    corpus = _corpus(options.text)
    (options.output / TEXT).write_bytes(corpus.held_out)
    with (options.output / LOG).open("w", encoding="utf-8") as log:
        _say(log, f"text: {len(corpus.tokens):,} tokens; held out: {len(corpus.held_out):,} bytes")
        _say(log, f"text sha256 {hashlib.sha256(options.text.read_bytes()).hexdigest()}")
        _say(log, f"config: {asdict(CONFIG)}")
        _say(log, f"seed {SEED}, {options.steps} steps of {NUM_TOKENS_A_STEP} tokens, {NUM_THREADS} thread")
        _say(log, f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
        begin = time.perf_counter()
        model = _initial_model()
        _train(model, corpus, options.steps, log)
        print(f"trained in {time.perf_counter() - begin:.0f} s", file=sys.stderr)
        weights = options.output / WEIGHTS
        save_checkpoint(model.requires_grad_(False).half(), weights)
        stored = load_model(preset=None, checkpoint=weights, seed=0).model
        for length in (128, CONFIG.n_ctx):
            loss = _held_out_loss(stored, corpus.held_out, length)
            _say(log, f"stored file, held out, windows of {length}: {loss:.4f} nats, perplexity {math.exp(loss):.4f}")
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        _say(log, f"{WEIGHTS}: {num_parameters:,} parameters, {weights.stat().st_size:,} bytes, sha256 {digest}")


def _corpus(path: Path) -> Corpus:
    tokens: list[torch.Tensor] = []
    held_out = b""
    for novel in novels_from_rdb(path):
        if novel.startswith(HELD_OUT_NOVEL):
            held_out, novel = novel[:NUM_HELD_OUT], novel[NUM_HELD_OUT:]
        tokens += [torch.frombuffer(bytearray(novel), dtype=torch.uint8).long(), torch.tensor([END_OF_TEXT])]
    if len(held_out) != NUM_HELD_OUT:
        raise ValueError(f"{path} does not hold {HELD_OUT_NOVEL.decode()}")
    return Corpus(tokens=torch.cat(tokens), held_out=held_out)


def _initial_model() -> Andrea:
    """The seeded initialisation at the size that suits this width, its positions in order, gradients on.

    GPT-2's 0.02 is meant for a width of 768; at 128 it keeps attention flat for hundreds of steps.
    """
    model = build_model(CONFIG, seed=SEED)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(math.sqrt(768 / CONFIG.d_model))
    model.position_embed.weight.copy_(_sinusoids(CONFIG))
    return model.requires_grad_(True)


def _sinusoids(config: AndreaConfig) -> torch.Tensor:
    """Where the position embedding starts, ``[n_ctx, d_model]``: neighbours alike from the first step on.

    From noise, 1024 positions would each have to be met often before attention could tell near from far.
    Source: Vaswani et al. 2017, section 3.5; scaled to the size of the token embedding.
    """
    rates = torch.exp(torch.arange(0, config.d_model, 2) * (-math.log(10_000.0) / config.d_model))
    angles = torch.arange(config.n_ctx).unsqueeze(1) * rates
    return 0.05 * torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def _batches(corpus: Corpus, num_steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Windows ``[B, S + 1]`` of tokens, and the positions ``[B, S]`` of all but the last."""
    generator = torch.Generator().manual_seed(SEED)
    for step in range(num_steps):
        length = LONG if step >= num_steps * (1 - LONG_SHARE) else SHORT
        num_rows = NUM_TOKENS_A_STEP // length
        starts = torch.randint(len(corpus.tokens) - length - 1, (num_rows, 1), generator=generator)
        first = torch.randint(CONFIG.n_ctx - length + 1, (num_rows, 1), generator=generator)
        yield corpus.tokens[starts + torch.arange(length + 1)], first + torch.arange(length)


def _train(model: Andrea, corpus: Corpus, num_steps: int, log: TextIO) -> None:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98))
    recent: list[float] = []
    for step, (window_BS, positions_BS) in enumerate(_batches(corpus, num_steps), start=1):
        progress = max(0.0, (step - WARM_UP) / max(1, num_steps - WARM_UP))
        rate = PEAK_RATE * min(1.0, step / WARM_UP) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits_BSV, _ = model(window_BS[:, :-1], position_ids=positions_BS)
        loss = F.cross_entropy(logits_BSV.flatten(0, 1), window_BS[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        if step % 100 == 0 or step == num_steps:
            _say(log, f"step {step:>4}: loss {sum(recent) / len(recent):.4f} nats, rate {rate:.2e}")
            recent.clear()


def _held_out_loss(model: Andrea, text: bytes, length: int) -> float:
    """The mean negative log-likelihood in nats a byte, over whole windows; each starts without context."""
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    windows = tokens[: len(tokens) // length * length].view(-1, length)
    with torch.inference_mode():
        losses = [
            F.cross_entropy(model(window[None, :-1])[0][0], window[1:], reduction="sum").item() for window in windows
        ]
    return sum(losses) / (windows.shape[0] * (length - 1))


def _say(log: TextIO, line: str) -> None:
    print(line, file=sys.stderr, flush=True)
    log.write(line + "\n")


if __name__ == "__main__":
    main()
