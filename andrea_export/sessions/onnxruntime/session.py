"""One ONNX file on one provider, as a Session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import RunError
from andrea_export.sessions.base import Feeds
from andrea_export.sessions.onnxruntime.errors import on_one_line, onnxruntime_errors
from andrea_export.sessions.onnxruntime.opening import SessionTuning, open_raw


class OnnxSession:
    """One ONNX file on one provider; with ``taps``, those layers are outputs too (the graph is otherwise as it ships).

    ``graph`` runs another graph, serialised, over the weights beside the file.

    Raises: BackendUnavailable (provider not installed, no driver, silently replaced), RunError (file not loadable).
    """

    def __init__(
        self,
        model: Path,
        provider: str = "cpu",
        *,
        taps: Sequence[str] = (),
        graph: bytes | None = None,
        name: str | None = None,
        tuning: SessionTuning | None = None,
    ) -> None:
        self.name = name or f"onnxruntime-{provider}"
        self._session = open_raw(
            model, provider, tuning=tuning or SessionTuning(), graph=_tapped(model, taps) if taps else graph
        )
        self.output_names = tuple(output.name for output in self._session.get_outputs())
        self.input_names = tuple(entry.name for entry in self._session.get_inputs())

    def input_dtype(self, name: str) -> np.dtype[Any]:
        """The type an input wants. Raises: KeyError."""
        return input_dtype(self._session, name)

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        """Every output (and tap). Raises: RunError with onnxruntime's reason."""
        try:
            outputs = self._session.run(None, {name: feeds[name] for name in self.input_names})
        except KeyError as error:
            raise RunError(f"{self.name}: input {error} was not given") from None
        except onnxruntime_errors() as error:
            raise RunError(f"{self.name} cannot run these inputs: {on_one_line(error)}") from error
        return dict(zip(self.output_names, outputs, strict=True))

    def close(self) -> None:
        """Releases the session and its weights."""
        del self._session

    def __enter__(self) -> OnnxSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def input_dtype(session: Any, name: str) -> np.dtype[Any]:
    """The type an input of onnxruntime's session wants. Raises: KeyError if it has no such input."""
    types = {entry.name: entry.type for entry in session.get_inputs()}
    word = types[name].removeprefix("tensor(").removesuffix(")")
    return np.dtype("float32" if word == "float" else word)


def _tapped(model: Path, taps: Sequence[str]) -> bytes:
    """The graph with taps, its weights still in the file they are in."""
    import onnx_ir as ir

    from andrea_export.graph.passes.extract_layers import AddTaps

    tapped = ir.load(model)
    values = {value.name for node in tapped.graph for value in node.outputs}
    # A layer the file lacks is for the comparison to report as missing, among the others.
    AddTaps([tap for tap in taps if tap in values])(tapped)
    serialized: bytes = ir.to_proto(tapped).SerializeToString()
    return serialized
