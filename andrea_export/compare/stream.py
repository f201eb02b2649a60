"""What a local run is given: layers of earlier segments as far as any run asks for them, and past keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.runs import ByCase, LayerRun
from andrea_export.core.names import Segment, graph_outputs, present_names, segments
from andrea_model.config import AndreaConfig


class Stream:
    """What later segments need of one run's earlier ones, as far as any of ``runs`` asks for it, and its outputs."""

    def __init__(self, config: AndreaConfig, cases: Sequence[Case], runs: Sequence[LayerRun]) -> None:
        self._cases = cases
        order = segments(config)
        self._needed_after = {
            segment.name: {name for later in order[index + 1 :] for run in runs for name in run.needs(later)}
            for index, segment in enumerate(order)
        }
        self._carried: dict[str, Arrays] = {case.name: {} for case in cases}
        self._output_names = {spec.name for spec in graph_outputs(config)}
        self.outputs: ByCase = {}

    def given(self, segment: Segment, layers: ByCase) -> dict[str, Arrays]:
        """By case: these layers, those carried on, and the past keys and values they were computed with."""
        for case, found in layers.items():
            self._carried[case].update(found)
            outputs = {name: value for name, value in found.items() if name in self._output_names}
            self.outputs.setdefault(case, {}).update(outputs)
        return given_of(segment, self._cases, self._carried, layers)

    def forget(self, segment: Segment) -> None:
        """Drops what no later segment needs."""
        needed = self._needed_after[segment.name]
        self._carried = {
            case: {name: value for name, value in found.items() if name in needed}
            for case, found in self._carried.items()
        }


def given_of(
    segment: Segment, cases: Sequence[Case], carried: Mapping[str, Arrays], layers: ByCase
) -> dict[str, Arrays]:
    """By case: the carried layers and the segment's own, and the past keys and values they were computed with."""
    given = {}
    for case in cases:
        if case.name not in layers:
            continue
        values = {**carried[case.name], **layers[case.name]}
        if segment.block is not None:
            for part, name in zip(("key", "value"), present_names(segment.block), strict=True):
                past = layers.get(case.past_of or case.name, {}).get(name)
                if past is not None:
                    values[f"past_key_values.{segment.block}.{part}"] = past if case.past_of else past[:, :, :0]
        given[case.name] = values
    return given
