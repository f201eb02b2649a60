"""Options that several commands share: their names, help texts and choices. Reads the environment, once, here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.core.errors import UsageError
from andrea_export.core.precision import BUILT_PRECISIONS, ORT_PRECISIONS
from andrea_export.targets.registry import REGISTRY
from andrea_model.config import PRESETS, AndreaConfig

if TYPE_CHECKING:
    from andrea_export.targets.protocol import Toolchain
    from andrea_export.tokens.tokenizer import Tokenizer
    from andrea_export.weights.readers import Reading


_MAX_DIGITS = 18  # of a token id: more would not fit the graph's int64


class ProviderChoice(str, Enum):
    """Where onnxruntime runs a model."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"


class OrientationChoice(str, Enum):
    """How a checkpoint stores its matrices."""

    IN_OUT = "in-out"
    OUT_IN = "out-in"


def _choices(name: str, values: Iterable[str]) -> Any:
    """The choices of an option, as typer takes them: an enumeration of these values."""
    return Enum(name, {value.replace("-", "_").upper(): value for value in values}, type=str)


if TYPE_CHECKING:
    TargetChoice = Enum
    PrecisionChoice = Enum
    OrtPrecisionChoice = Enum
else:
    TargetChoice = _choices("TargetChoice", REGISTRY)
    PrecisionChoice = _choices("PrecisionChoice", BUILT_PRECISIONS)
    OrtPrecisionChoice = _choices("OrtPrecisionChoice", ORT_PRECISIONS)


def _seed(value: int | None) -> int | None:
    if value is not None and not 0 <= value < 2**63:  # what torch's generator takes
        raise UsageError(f"--seed is {_clipped(str(value))}, expected 0 to 2^63 - 1")
    return value


def option(names: str, help: str, metavar: str | None = None, *, default_shown: bool = False, **more: Any) -> Any:
    """A typer option under ``names`` ("--output -o"); what it is when left out is said in its help, if at all."""
    return typer.Option(*names.split(), help=help, metavar=metavar, show_default=default_shown, **more)


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of text.")]
PresetOption = Annotated[
    str | None,
    option(
        "--preset",
        f"The model's shape: {', '.join(PRESETS)}. [default: the checkpoint's own, else andrea-120m]",
        "NAME",
        autocompletion=lambda incomplete: [name for name in PRESETS if name.startswith(incomplete)],
    ),
]
CheckpointOption = Annotated[
    Path | None,
    option(
        "--checkpoint",
        "Weights: a file, or a folder of Hugging Face's (docs/guides/checkpoints.md). [default: none: untrained "
        "weights, made from --seed]",
        "PATH",
    ),
]
ConfigOption = Annotated[
    Path | None,
    option(
        "--config",
        "The model's shape in a file, TOML or JSON, where neither the checkpoint nor a preset has it.",
        "FILE",
    ),
]
OrientationOption = Annotated[
    OrientationChoice | None,
    option(
        "--orientation",
        "How the checkpoint stores matrices: in-out or out-in (nn.Linear's). [default: as it says or its shapes prove]",
        "WAY",
    ),
]
LayoutOption = Annotated[
    Path | None,
    option(
        "--layout",
        "The order of the tensors in the published training checkpoint, as TOML. [default: a guess, called one]",
        "FILE",
    ),
]
RecogniseOption = Annotated[
    bool,
    typer.Option("--recognise", help="Read names that nobody knows by shapes and order, as an error said it would."),
]
SeedOption = Annotated[int | None, option("--seed", "Seed of the untrained weights. [default: 0]", "N", callback=_seed)]
TokenizerOption = Annotated[
    str | None,
    option(
        "--tokenizer",
        "How text becomes tokens: tokenizer.json, GPT-2's vocab.json, a JSON list of segments, a folder with one of "
        "them, bytes, or none. [default: the one in the checkpoint's folder; for a file, bytes]",
        "FILE",
    ),
]
CacheDirOption = Annotated[
    Path | None,
    option(
        "--cache-dir",
        "Where compiled plugins are kept. [default: andrea-export in $XDG_CACHE_HOME or ~/.cache]",
        "FOLDER",
    ),
]
ProviderOption = Annotated[
    ProviderChoice,
    option(
        "--provider",
        "Where onnxruntime runs: auto, cpu, cuda, tensorrt or tensorrt-rtx. Never another one than asked for.",
        "PROVIDER",
        default_shown=True,
    ),
]
OrtPrecisionOption = Annotated[
    OrtPrecisionChoice | None,
    option("--precision", "On the CPU, one the bundle was built in: fp32, int8 or int4. [default: fp32]", "PRECISION"),
]
DraftOption = Annotated[
    OrtPrecisionChoice | None,
    option(
        "--draft",
        "A cheaper precision of the bundle proposes tokens, and --precision verifies several in one run: the same "
        "text, sooner. [default: none]",
        "PRECISION",
    ),
]
ThreadsOption = Annotated[
    int | None,
    option("--threads", "How many to compute with. [default: the physical cores this process may use]", "N"),
]
PolicyOption = Annotated[
    Path | None,
    option(
        "--policy",
        "What is allowed, as TOML (docs/reference/policy.md). [default: budgets derived from torch's own error]",
        "FILE",
    ),
]
BaselineOption = Annotated[
    Path | None,
    option(
        "--baseline",
        "An earlier report.json: no metric may worsen by more than the policy's ratchet allows.",
        "FILE",
    ),
]
InputsOption = Annotated[
    Path | None,
    option("--inputs", "Token ids, one row a line, apart by commas or spaces. [default: three seeded rows]", "FILE"),
]
TextOption = Annotated[
    Path | None,
    option(
        "--text",
        "What the language model is judged on: a .txt file, by the model's own tokenizer (else its bytes are the "
        "tokens), or token ids. "
        "[default: a built-in text]",
        "FILE",
    ),
]
LanguageModelOption = Annotated[
    bool,
    typer.Option(
        "--language-model/--no-language-model", help="Judge predictions too: top-1, KL, perplexity, greedy prefix."
    ),
]


def cache_dir_from(option: Path | None) -> Path:
    """The cache folder: the option's, else the XDG one. Not created here."""
    if option is not None:
        return option.expanduser().absolute()
    root = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification: a relative path there is invalid and is to be ignored.
    base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return base / "andrea-export"


def toolchain_from_environment() -> Toolchain:
    """NVIDIA's own names: ``TENSORRT_ROOT`` (its headers), ``CUDA_HOME`` (a toolkit, used where no nvcc wheel is)."""
    from andrea_export.targets.protocol import Toolchain

    def folder(name: str) -> Path | None:
        value = os.environ.get(name)
        return Path(value) if value else None

    return Toolchain(tensorrt_root=folder("TENSORRT_ROOT"), cuda_root=folder("CUDA_HOME"))


def reading_from(
    orientation: OrientationChoice | None, layout: Path | None, recognise: bool, config: AndreaConfig | None = None
) -> Reading:
    """What the options say of a checkpoint."""
    from andrea_export.weights.readers import Reading

    way: Any = None if orientation is None else orientation.value
    return Reading(config=config, orientation=way, layout=layout, recognised=recognise)


def tokens_from_prompt(text: str, vocab_size: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of --prompt. Raises: UsageError if it is empty or not Unicode, or the vocabulary is too small."""
    if not text:
        raise UsageError("--prompt is empty, expected at least one character")
    if vocab_size < tokenizer.vocab_size:
        raise UsageError(
            f"text needs a vocabulary of at least {tokenizer.vocab_size}, and the model's has {vocab_size}"
        )
    try:
        return tokenizer.encode(text)
    except UnicodeEncodeError:
        raise UsageError("--prompt is not valid text in this terminal's encoding", hint="use UTF-8") from None


def tokens_from_ids(text: str) -> tuple[int, ...]:
    """The tokens of --tokens: ``5,17,42``. Raises: UsageError naming every part that is not a whole number from 0."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not parts:
        raise UsageError("--tokens is empty, expected at least one token id", hint="for example --tokens 5,17,42")
    # str.isdecimal also takes digits of other scripts, which nobody means here.
    wrong = [part for part in parts if not (part.isascii() and part.isdecimal() and len(part) <= _MAX_DIGITS)]
    if wrong:
        shown = ", ".join(f"'{_clipped(part)}'" for part in wrong[:8])
        raise UsageError(
            f"--tokens: {shown} {'is not a token id' if len(wrong) == 1 else 'are not token ids'}, "
            "expected whole numbers of at least 0",
            hint="for example --tokens 5,17,42",
        )
    return tuple(int(part) for part in parts)


def _clipped(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:16]}… ({len(text):,} characters)"
