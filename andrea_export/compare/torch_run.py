"""The torch model behind ``LayerRun``: its own modules, converted to a precision one segment at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.runs import ByCase, LayerRun, Visible
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError, first_line
from andrea_export.core.names import Segment, present_names
from andrea_export.core.precision import PRECISIONS
from andrea_export.sessions.torch_reference import array_from_torch, cache_dtype, converted, recorded
from andrea_model.model import Andrea, Block

Given = Callable[[str], Tensor]
Steps = dict[str, Callable[[], Tensor]]


class TorchRun(LayerRun):
    """Runs the model in one precision (a row of ``precision.PRECISIONS``); holds one converted segment.

    ``convert``: makes the parts that compute, if not as the precision has them (``Rounding``).
    """

    def __init__(
        self, model: Andrea, cases: Sequence[Case], *, precision: str, convert: Callable[[Any, str], Any] | None = None
    ) -> None:
        super().__init__(Visible())
        self.precision = precision
        self._convert = convert or (lambda part, _path: converted(part, precision))
        self._model = model
        self._cases = {case.name: case for case in cases}
        self._stream: dict[str, Tensor] = {}
        self._allowed: dict[str, Tensor] = {}
        self._converted: tuple[str, Any] = ("", None)

    def accumulated(self, segment: Segment) -> ByCase:
        try:
            with torch.inference_mode():
                return self._accumulated(segment)
        except (IndexError, RuntimeError, ValueError) as error:
            raise RunError(f"torch cannot run these inputs: {first_line(error)}") from error

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        found: ByCase = {}
        with torch.inference_mode():
            for name, values in given.items():
                layers = self._local_layers(segment, self._cases[name], _given(values, self.precision))
                found[name] = {layer: array_from_torch(tensor) for layer, tensor in layers.items()}
        return found

    def needs(self, segment: Segment) -> Sequence[str]:
        """The mask and the residual stream, for a block; the stream, for the head."""
        if segment.name == "embed":
            return ()
        return (self._stream_name(segment), *(() if segment.block is None else ("mask",)))

    def close(self) -> None:
        """Releases the converted segment."""
        self._converted = ("", None)

    # --- accumulated --------------------------------------------------------------------------------------------

    def _accumulated(self, segment: Segment) -> ByCase:
        config = self._model.config
        presents: dict[str, tuple[Tensor, Tensor]] = {}
        found: ByCase = {}
        for name, case in self._cases.items():
            layers: dict[str, Tensor] = {}
            if segment.name == "embed":
                layers = self._embed(segment, case)
                self._stream[name], self._allowed[name] = layers["embed_residual"], layers["mask"]
            elif segment.block is None:
                ln_f, head, table = self._parts(segment)
                layers["ln_f"] = ln_f(self._stream[name])
                layers["logits"] = head(layers["ln_f"], table)
            else:
                block = self._parts(segment)
                shape = (len(case.input_ids), config.n_head, 0, config.d_head)
                empty = torch.zeros(shape, dtype=cache_dtype(self.precision))
                past = (empty, empty) if case.past_of is None else presents[case.past_of]
                with recorded(block, segment.layers, layers, prefix=f"blocks.{segment.block}."):
                    self._stream[name], presents[name] = block(self._stream[name], past, self._allowed[name])
                layers.update(zip(present_names(segment.block), presents[name], strict=True))
            found[name] = {layer: array_from_torch(tensor) for layer, tensor in layers.items()}
        return found

    def _embed(self, segment: Segment, case: Case) -> dict[str, Tensor]:
        token_embed, position_embed, residual, mask = self._parts(segment)
        tokens = token_embed(torch.from_numpy(case.input_ids))
        positions = position_embed(torch.from_numpy(case.position_ids))
        return {
            "mask": mask(torch.from_numpy(case.attention_mask), case.input_ids.shape[1]),
            "token_embed": tokens,
            "position_embed": positions,
            "embed_residual": residual(tokens, positions),
        }

    # --- local --------------------------------------------------------------------------------------------------

    def _local_layers(self, segment: Segment, case: Case, given: Given) -> dict[str, Tensor]:
        """Every layer whose inputs were given, computed from them."""
        steps: Steps
        if segment.name == "embed":
            layers = self._embed(segment, case)
            residual = self._parts(segment)[2]
            layers.pop("embed_residual")
            steps = {"embed_residual": lambda: residual(given("token_embed"), given("position_embed"))}
        elif segment.block is None:
            ln_f, head, table = self._parts(segment)
            layers = {}
            steps = {
                "ln_f": lambda: ln_f(given(self._stream_name(segment))),
                "logits": lambda: head(given("ln_f"), table),
            }
        else:
            layers = {}
            steps = self._block_steps(segment, self._parts(segment), given)
        for name, step in steps.items():
            try:
                layers[name] = step()
            except KeyError:  # the reference has no such input to give
                continue
        return layers

    def _block_steps(self, segment: Segment, block: Block, given: Given) -> Steps:
        """Layer of the block → what computes it. The order of the sublayers is that of ``Block.forward``."""
        index = segment.block
        assert index is not None
        key_name, value_name = present_names(index)
        stream = self._stream_name(segment)

        def own(name: str) -> Tensor:
            return given(f"blocks.{index}.{name}")

        def heads(part: int) -> Tensor:
            return block.attn.split_heads(own("attn.qkv").chunk(3, dim=-1)[part])

        def cached(part: int, name: str) -> Tensor:
            return torch.cat((given(f"past_key_values.{index}.{name}"), heads(part)), dim=2)

        steps: Steps = {
            "ln_1": lambda: block.ln_1(given(stream)),
            "attn.qkv": lambda: block.attn.qkv(own("ln_1")),
            "attn.context": lambda: block.attn.context(heads(0), given(key_name), given(value_name), given("mask")),
            "attn.proj": lambda: block.attn.proj(own("attn.context")),
            "attn_residual": lambda: block.attn_residual(given(stream), own("attn.proj")),
            "ln_2": lambda: block.ln_2(own("attn_residual")),
            "mlp.fc": lambda: block.mlp.fc(own("ln_2")),
            "mlp.gelu": lambda: block.mlp.gelu(own("mlp.fc")),
            "mlp.proj": lambda: block.mlp.proj(own("mlp.gelu")),
            "mlp_residual": lambda: block.mlp_residual(own("attn_residual"), own("mlp.proj")),
        }
        named = {f"blocks.{index}.{name}": step for name, step in steps.items()}
        return {**named, key_name: lambda: cached(1, "key"), value_name: lambda: cached(2, "value")}

    # --- parts --------------------------------------------------------------------------------------------------

    def _parts(self, segment: Segment) -> Any:
        """The modules of a segment in this precision; the last segment's are kept until another is asked for."""
        if self._converted[0] != segment.name:
            self._converted = ("", None)  # released before the next is made
            self._converted = (segment.name, self._converted_parts(segment))
        return self._converted[1]

    def _converted_parts(self, segment: Segment) -> Any:
        def part(path: str) -> Any:
            return self._convert(self._model.get_submodule(path), path)

        if segment.name == "embed":
            return tuple(part(path) for path in ("token_embed", "position_embed", "embed_residual", "mask"))
        if segment.block is None:
            table = part("token_embed" if self._model.config.tied_head else "head").weight
            return part("ln_f"), part("head"), table
        return part(f"blocks.{segment.block}")

    def _stream_name(self, segment: Segment) -> str:
        before = self._model.config.n_layer if segment.block is None else segment.block
        return "embed_residual" if before == 0 else f"blocks.{before - 1}.mlp_residual"


def _given(values: Arrays, precision: str) -> Given:
    """Name → the given value as a tensor of the type this precision has for it. Raises KeyError for one not given."""

    def given(name: str) -> Tensor:
        value = values[name]
        if value.dtype == np.bool_:
            return torch.from_numpy(np.ascontiguousarray(value))
        dtype = PRECISIONS[precision].module_dtype(name)
        exact = np.ascontiguousarray(value, np.float64) if value.dtype != np.float32 else np.ascontiguousarray(value)
        tensor: Tensor = torch.from_numpy(exact).to(getattr(torch, DTYPES[dtype].torch))
        return tensor

    return given
