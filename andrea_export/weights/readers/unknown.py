"""Names that nobody here knows: matched to the model by shapes, by what lies together, and by the order of names. What
comes of it is a proposal: it is used only where the user says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.readers.andrea import OURS
from andrea_export.weights.readers.base import Checkpoint, Orientation, Reading, described
from andrea_export.weights.readers.flat import APART
from andrea_export.weights.readers.stored import StoredTensor, same
from andrea_model.config import AndreaConfig

_GAINS, _BIASES = ("weight", "gamma", "gain", "scale", "g", "w"), ("bias", "beta", "b")
_PART = re.compile(r"(?:^|[._])(?:attn_?)?w?_?([qkv])(?:_proj|_lin|uery|ey|alue)?(?:$|[._])")


class _NoMatchError(Exception):
    """Why the tensors are not those of such a model, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What unknown names look like."""

    names: Mapping[str, str]
    """The model's name (q, k and v apart, if they are) → the file's."""
    orientation: Orientation
    shape: Mapping[str, int]
    """``d_model`` and the like, as the shapes tell them."""
    tied: bool
    bias: bool
    norms: bool

    @property
    def family(self) -> str:
        """Which known family it looks like, in words."""
        apart = "blocks.0.attn.q.weight" in self.names
        like = "microgpt" if apart else "GPT-2 (Conv1D)" if self.orientation == "in-out" else "nanoGPT"
        return f"{like} with matrices {described(self.orientation)}"

    @property
    def told(self) -> str:
        """The names of the first block and of what is outside, each with what it is taken for."""
        kept = {ours: name for ours, name in self.names.items() if not re.match(r"blocks\.[1-9]", ours)}
        return ", ".join(f"{name} = {ours}" for ours, name in kept.items() if ours.endswith("weight"))

    def config(self, n_head: int, epsilon: float) -> AndreaConfig:
        """The shape, with what no tensor shows."""
        return AndreaConfig(
            **self.shape,
            n_head=n_head,
            layer_norm_epsilon=epsilon,
            tied_head=self.tied,
            bias=self.bias,
            norm_parameters=self.norms,
        )


def open_unknown(path: Path, tensors: Mapping[str, StoredTensor], reading: Reading) -> Checkpoint | None:
    """The checkpoint as it looks, where the user takes that for granted; None where it looks like nothing.

    Raises: CheckpointError that says what it looks like, and which command reads it so.
    """
    try:
        match = match_of(tensors)
    except _NoMatchError:
        return None
    if not reading.recognised:
        raise CheckpointError(
            f"checkpoint {path}: its names are of no known family; by shapes and order it looks like {match.family}: "
            f"{match.told}",
            hint=f"if that is right: andrea-export convert {path} DESTINATION --recognise --config FILE (build takes "
            "these options too)",
        )
    given = reading.config
    config = match.config(given.n_head, given.layer_norm_epsilon) if given is not None else None
    return Checkpoint(
        path=path,
        family=f"unknown names, read like {match.family}",
        tensors={ours: tensors[name] for ours, name in match.names.items()},
        spelling=APART if "blocks.0.attn.q.weight" in match.names else OURS,
        config=config,
        orientation=match.orientation if reading.orientation is None else reading.orientation,
        guess=f"its names are of no known family, and were read by shapes and order, like {match.family}",
        notes=(f"A GUESS: read like {match.family}: {match.told}",),
        hint=lambda _: "its shapes were taken for those of a model that they do not make",
    )


def match_of(tensors: Mapping[str, StoredTensor]) -> Match:
    """What the names stand for. Raises: _NoMatchError."""
    blocks, outside = _grouped(tensors)
    num_layers = len(next(iter(blocks.values())))
    shapes = {pattern: tensors[names[0]].shape for pattern, names in blocks.items()}
    tables = {name: tensors[name].shape for name in outside if len(tensors[name].shape) == 2}
    widths = {shape[1] for shape in tables.values()}
    if len(widths) != 1 or not 2 <= len(tables) <= 3:
        raise _NoMatchError("its embeddings are not two or three tables of one width")
    width = widths.pop()
    found, orientation, inner = _matrices(shapes, width)
    matrices = dict(found)
    found |= _vectors(shapes, matrices, width)
    if left := shapes.keys() - set(found.values()):
        raise _NoMatchError(f"{sorted(left)[0]} is nothing that a block has")
    names = {
        f"blocks.{block}.{ours}": blocks[pattern][block]
        for block in range(num_layers)
        for ours, pattern in found.items()
    }
    own_tables = _tables(tables)
    if "head.weight" in own_tables and same(
        *(tensors[own_tables[f"{name}.weight"]] for name in ("token_embed", "head"))
    ):
        del own_tables["head.weight"]  # a copy of the tied matrix
    names |= own_tables
    finals = [name for name in outside if len(tensors[name].shape) == 1]
    names |= {f"ln_f.{_leaf(name)}": name for name in finals}
    if len(finals) > 2 or any(tensors[name].shape != (width,) for name in finals):
        raise _NoMatchError("what is outside its blocks is not a norm")
    return Match(
        names=names,
        orientation=orientation,
        shape={
            "d_model": width,
            "n_layer": num_layers,
            "n_ctx": tensors[own_tables["position_embed.weight"]].shape[0],
            "vocab_size": tensors[own_tables["token_embed.weight"]].shape[0],
            "mlp_dim": inner,
        },
        tied="head.weight" not in names,
        bias="mlp.fc.bias" in found,
        norms="ln_1.weight" in found,
    )


def _grouped(tensors: Mapping[str, StoredTensor]) -> tuple[dict[str, list[str]], list[str]]:
    """(names alike but for the block's number → those names, block by block; the others). Buffers are left out."""
    groups: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if len(tensor.shape) not in (1, 2):
            continue
        number = re.search(r"(?:^|[._])(\d+)(?:[._]|$)", name) or re.search(r"(\d+)", name)
        pattern = name if number is None else f"{name[: number.start(1)]}N{name[number.end(1) :]}"
        groups[pattern][-1 if number is None else int(number[1])] = name
    sizes = [len(names) for names in groups.values() if set(names) == set(range(len(names)))]
    num_layers = max(set(sizes), key=sizes.count, default=0)
    blocks: dict[str, list[str]] = {}
    outside: list[str] = []
    for pattern, names in groups.items():
        if set(names) == set(range(num_layers)) and pattern not in tensors:
            blocks[pattern] = [names[block] for block in range(num_layers)]
        else:
            outside += names.values()
    for alike in blocks.values():
        if len({tensors[name].shape for name in alike}) != 1:
            raise _NoMatchError(f"{alike[0]} has other shapes in other blocks")
    if not blocks:
        raise _NoMatchError("no names repeat block by block")
    return dict(sorted(blocks.items(), key=lambda item: _natural(item[0]))), outside


def _matrices(shapes: Mapping[str, tuple[int, ...]], width: int) -> tuple[dict[str, str], Orientation, int]:
    """(the block's matrices, how they are stored, mlp_dim). Raises: _NoMatchError."""
    matrices = {pattern: shape for pattern, shape in shapes.items() if len(shape) == 2}
    squares = [pattern for pattern, shape in matrices.items() if shape == (width, width)]
    others = {pattern: shape for pattern, shape in matrices.items() if shape != (width, width)}
    wide = [pattern for pattern, shape in others.items() if sorted(shape) == [width, 3 * width]]
    if len(squares) == 1 and len(others) == 3 and len(wide) == 1:
        orientation: Orientation = "in-out" if others[wide[0]] == (width, 3 * width) else "out-in"
        found = {"attn.qkv.weight": wide[0], "attn.proj.weight": squares[0]}
        inner = [pattern for pattern in others if pattern != wide[0]]
        axis = 0 if orientation == "in-out" else 1
        widens = [pattern for pattern in inner if others[pattern][axis] == width]
        if len(widens) != 1:
            raise _NoMatchError("the MLP's matrices do not widen and narrow")
        fc = widens[0]
    elif len(squares) == 4 and len(others) == 2:
        parts = {part[1]: pattern for pattern in squares if (part := _PART.search(pattern)) is not None}
        if sorted(parts) != ["k", "q", "v"]:
            raise _NoMatchError("four square matrices, and no name says which are q, k and v")
        (projection,) = [pattern for pattern in squares if pattern not in parts.values()]
        found = {**{f"attn.{part}.weight": parts[part] for part in "qkv"}, "attn.proj.weight": projection}
        inner = list(others)
        fc = inner[0]  # by the order of names: fc1 before fc2, c_fc before c_proj, w1 before w2
        orientation = "out-in" if others[fc][1] == width else "in-out"
    else:
        raise _NoMatchError("its blocks have not the matrices of attention and MLP")
    (projection,) = [pattern for pattern in inner if pattern != fc]
    if sorted(others[fc]) != sorted(others[projection]) or others[fc] != others[projection][::-1]:
        raise _NoMatchError("the MLP's matrices do not belong together")
    sizes = [size for size in others[fc] if size != width]
    return {**found, "mlp.fc.weight": fc, "mlp.proj.weight": projection}, orientation, sizes[0]


def _vectors(shapes: Mapping[str, tuple[int, ...]], matrices: Mapping[str, str], width: int) -> dict[str, str]:
    """The block's biases, each beside its matrix by name, and its norms in the order of their names."""
    beside = {_module(pattern): ours for ours, pattern in matrices.items()}
    found: dict[str, str] = {}
    norms: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for pattern, shape in shapes.items():
        if len(shape) != 1:
            continue
        ours = beside.get(_module(pattern))
        if ours is not None:
            found[ours.replace(".weight", ".bias")] = pattern
        elif shape == (width,):
            norms[_module(pattern)][_leaf(pattern)] = pattern
        else:
            raise _NoMatchError(f"{pattern} belongs to no matrix")
    if len(norms) not in (0, 2):
        raise _NoMatchError(f"{len(norms)} norms in a block, expected 2 or none")
    for ours, module in zip(("ln_1", "ln_2"), norms, strict=False):
        found |= {f"{ours}.{leaf}": pattern for leaf, pattern in norms[module].items()}
    return found


def _tables(tables: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Which table is the embedding, which the positions, which the head. Raises: _NoMatchError."""
    heads = [name for name in tables if re.search(r"head|unembed|output", name)]
    positions = [name for name in tables if re.search(r"pos|wpe", name)]
    tokens = [name for name in tables if name not in (*heads, *positions)]
    if len(positions) != 1 or len(tokens) != 1 or len(heads) > 1:
        raise _NoMatchError("no name says which table is the positions'")
    if heads and tables[heads[0]] != tables[tokens[0]]:
        raise _NoMatchError("its head has another shape than its embedding")
    found = {"token_embed.weight": tokens[0], "position_embed.weight": positions[0]}
    return found | ({"head.weight": heads[0]} if heads else {})


def _module(pattern: str) -> str:
    """A name without ``weight`` or ``bias``."""
    head, _, leaf = pattern.rpartition(".")
    return head if leaf in (*_GAINS, *_BIASES) else re.sub(r"[._]?(weight|bias|b|w)$", "", pattern)


def _leaf(pattern: str) -> str:
    """``weight`` or ``bias``. Raises: _NoMatchError."""
    last = re.split(r"[._]", pattern)[-1]
    if last in _GAINS or last in _BIASES:
        return "weight" if last in _GAINS else "bias"
    raise _NoMatchError(f"{pattern} is neither a weight nor a bias by its name")


def _natural(name: str) -> list[object]:
    """A key that sorts ln_2 before ln_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
