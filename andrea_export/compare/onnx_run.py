"""An ONNX file behind ``LayerRun``: one small session a segment, and one in which every layer is given its input.

The segments are parts of the file's own graph, cut at its named layers, over the file's own weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.runs import ByCase, LayerRun, Visible
from andrea_export.core.dtypes import DTYPES, dtype_from_onnx
from andrea_export.core.errors import RunError
from andrea_export.core.names import Segment, layer_names, present_names, segments
from andrea_export.core.precision import Precision
from andrea_export.graph.canonical.metadata import load_graph
from andrea_export.graph.passes.extract_layers import LayerExtractor, Part
from andrea_export.sessions.base import zero_cache
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_model.config import AndreaConfig


class OnnxRun(LayerRun):
    """Runs one ONNX file on one provider, a segment at a time; keeps only the layers that later segments use.

    Raises: RunError or BackendUnavailable where onnxruntime cannot.
    """

    def __init__(
        self,
        model: Path,
        config: AndreaConfig,
        cases: Sequence[Case],
        *,
        precision: Precision,
        provider: str = "cpu",
        name: str | None = None,
    ) -> None:
        super().__init__(Visible())
        self._path = model
        self._config = config
        self._cases = {case.name: case for case in cases}
        self._provider = provider
        self._name = name or f"onnxruntime-{provider}"
        self._names = frozenset(layer_names(config))
        self._cache_dtype = DTYPES[precision.cache_dtype].numpy
        graph = load_graph(model)
        # What the precision's rule says of each layer; a graph that states its types overrules it.
        types = {name: DTYPES[precision.layer_dtype(name)].onnx for name in self._names}
        self._extractor = LayerExtractor(graph, types)
        self._parts = {segment.name: self._part(segment) for segment in segments(config)}
        self._kept: dict[str, Arrays] = {name: {} for name in self._cases}

    def accumulated(self, segment: Segment) -> ByCase:
        part = self._parts[segment.name]
        found: ByCase = {}
        if part.outputs:
            with self._open(part) as session:
                for name, case in list(self._cases.items()):
                    try:
                        kept = {entry: self._kept[name][layer] for layer, entry in part.layer_inputs.items()}
                        found[name] = session.run({**self._feeds(case, segment, found), **kept})
                    except RunError as error:
                        self._refuse(name, error)
        self._keep(segment, found)
        return found

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        part = self._local_part(segment, next(iter(given.values())))
        if not part.outputs:
            return {}
        found: ByCase = {}
        stated = {value.name: value.type.tensor_type.elem_type for value in part.model.graph.input}
        types = {name: dtype_from_onnx(stated[entry]).numpy for name, entry in part.layer_inputs.items()}
        with self._open(part) as session:
            for name, values in given.items():
                if name not in self._cases:
                    continue
                feeds = dict(self._cases[name].feeds)
                for key in part.graph_inputs:
                    if key.startswith("past_key_values."):
                        feeds[key] = values[key].astype(self._cache_dtype)
                feeds.update(
                    (entry, values[layer].astype(types[layer], copy=False))
                    for layer, entry in part.layer_inputs.items()
                )
                try:
                    found[name] = session.run(feeds)
                except RunError as error:
                    self._refuse(name, error)
        return found

    def needs(self, segment: Segment) -> Sequence[str]:
        """The layers of earlier segments that this segment's nodes read."""
        return tuple(name for name in self._local_part(segment, None).layer_inputs if name not in segment.layers)

    def _refuse(self, name: str, error: RunError) -> None:
        """Notes that a case cannot be run, and runs it no further. Raises the error where no case is left."""
        self.refusals.append(f"{name}: {error}")
        del self._cases[name]
        if not self._cases:
            raise error

    def _part(self, segment: Segment) -> Part:
        outputs = [name for name in segment.layers if self._extractor.has(name)]
        return self._extractor.extract(outputs, cut_at=self._names.difference(segment.layers))

    def _local_part(self, segment: Segment, given: Arrays | None) -> Part:
        """The part in which every layer is fed; with ``given``, without the layers whose inputs are not in it."""
        outputs = [name for name in segment.layers if self._extractor.has(name)]
        part = self._extractor.extract(outputs, cut_at=self._names)
        if given is None or all(name in given for name in part.layer_inputs):
            return part
        outputs = [
            name
            for name in outputs
            if all(entry in given for entry in self._extractor.extract([name], cut_at=self._names).layer_inputs)
        ]
        return self._extractor.extract(outputs, cut_at=self._names)

    def _open(self, part: Part) -> OnnxSession:
        return OnnxSession(self._path, self._provider, graph=part.model.SerializeToString(), name=self._name)

    def _feeds(self, case: Case, segment: Segment, found: ByCase) -> Arrays:
        feeds = dict(case.feeds)
        if segment.block is None:
            return feeds
        prefix = f"past_key_values.{segment.block}"
        if case.past_of is None:
            empty = zero_cache(self._config, batch=len(case.input_ids), past=0, dtype=self._cache_dtype)
            feeds.update((name, value) for name, value in empty.items() if name.startswith(f"{prefix}."))
        else:
            for part, name in zip(("key", "value"), present_names(segment.block), strict=True):
                if name in found.get(case.past_of, {}):
                    feeds[f"{prefix}.{part}"] = found[case.past_of][name]
        return feeds

    def _keep(self, segment: Segment, found: ByCase) -> None:
        """Remembers what later segments read, forgets the rest."""
        order = list(self._parts)
        later = {name for other in order[order.index(segment.name) + 1 :] for name in self._parts[other].layer_inputs}
        for case, layers in found.items():
            known = {**self._kept[case], **layers}
            self._kept[case] = {name: value for name, value in known.items() if name in later}
