"""llm.c's model files: a header of 256 int32, then GPT-2's tensors, those of all blocks together, every matrix
``[out, in]``. Its vocabulary is padded; the rows behind the real one are left out.

Source: llm.c's train_gpt2.py (``write_model``) and train_gpt2.c (``gpt2_build_from_checkpoint``). Its GELU is the tanh
form, as here.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.readers.andrea import OURS
from andrea_export.weights.readers.base import Checkpoint, Reading
from andrea_export.weights.readers.flat import cut_rows, placed
from andrea_export.weights.readers.recognise import LLMC_MAGIC
from andrea_export.weights.readers.stored import FLOAT_TYPES
from andrea_model.config import AndreaConfig

_HEADER_BYTES = 1024
_TYPES = {3: "F32", 5: "BF16"}
_KEYS = ("max_seq_len", "vocab_size", "num_layers", "num_heads", "channels", "padded_vocab_size")


def open_llmc(path: Path, reading: Reading) -> Checkpoint:
    """Raises: CheckpointError for another magic or version, an impossible shape, and a length that disagrees."""
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES:
        raise CheckpointError(f"checkpoint {path} has {len(head)} bytes, fewer than llm.c's header of {_HEADER_BYTES}")
    magic, version, *values = struct.unpack("<8i", head[:32])
    if magic != LLMC_MAGIC or version not in _TYPES:
        raise CheckpointError(
            f"checkpoint {path} has magic {magic} and version {version}, expected {LLMC_MAGIC} and "
            "3 (fp32) or 5 (bf16)",
            hint="write it again with a newer llm.c" if magic == LLMC_MAGIC else "is it llm.c's GPT-2?",
        )
    context, vocab, num_layers, num_heads, channels, padded = values
    try:
        if padded < vocab:
            raise ValueError(f"padded_vocab_size {padded} is less than vocab_size {vocab}")
        config = AndreaConfig(
            d_model=channels,
            n_head=num_heads,
            n_layer=num_layers,
            n_ctx=context,
            vocab_size=vocab,
            mlp_dim=4 * channels,
        )
    except ValueError as error:
        stated = ", ".join(f"{key} {value}" for key, value in zip(_KEYS, values, strict=True))
        raise CheckpointError(f"checkpoint {path} states an impossible shape: {error} ({stated})") from None
    dtype = _TYPES[version]
    tensors, end = placed(_order(config, padded), path, offset=_HEADER_BYTES, dtype=dtype)
    if path.stat().st_size != end:
        raise CheckpointError(
            f"checkpoint {path} has {path.stat().st_size:,} bytes, and its header states {end:,} "
            f"({(end - _HEADER_BYTES) // FLOAT_TYPES[dtype]:,} values in {dtype})",
            hint="copy it again whole",
        )
    return Checkpoint(
        path=path,
        family="llm.c",
        tensors=cut_rows(tensors, "token_embed.weight", vocab),
        spelling=OURS,
        config=config,
        orientation="out-in",
        metadata={"version": str(version), "padded_vocab_size": str(padded)},
    )


def _order(config: AndreaConfig, num_rows: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner = config.d_model, config.mlp_dim
    yield "token_embed.weight", (num_rows, width)
    yield "position_embed.weight", (config.n_ctx, width)
    for name, shape in (
        ("ln_1.weight", (width,)),
        ("ln_1.bias", (width,)),
        ("attn.qkv.weight", (3 * width, width)),
        ("attn.qkv.bias", (3 * width,)),
        ("attn.proj.weight", (width, width)),
        ("attn.proj.bias", (width,)),
        ("ln_2.weight", (width,)),
        ("ln_2.bias", (width,)),
        ("mlp.fc.weight", (inner, width)),
        ("mlp.fc.bias", (inner,)),
        ("mlp.proj.weight", (width, inner)),
        ("mlp.proj.bias", (width,)),
    ):
        for block in range(config.n_layer):
            yield f"blocks.{block}.{name}", shape
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)
