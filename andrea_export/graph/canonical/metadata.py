"""What a canonical file says of itself: its configuration and the origin of its weights, written and read."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from andrea_export.core.errors import ExportError, first_line
from andrea_export.core.names import CONFIG_KEY, ORIGIN_KEY, WEIGHTS_KEY
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalInfo:
    """What a canonical ONNX file says of itself."""

    config: AndreaConfig
    origin: WeightsOrigin


def metadata_of(config: AndreaConfig, origin: WeightsOrigin) -> dict[str, str]:
    """The file's own metadata, key → text; ``read_canonical_info`` reads it back."""
    return {
        CONFIG_KEY: json.dumps(config.stated()),
        WEIGHTS_KEY: str(origin),
        ORIGIN_KEY: json.dumps(asdict(origin)),
    }


def read_canonical_info(path: Path) -> CanonicalInfo | None:
    """``canonical_info`` of a file, whatever it is called."""
    return canonical_info(onnx.load(path, format="protobuf", load_external_data=False))


def canonical_info(model: onnx.ModelProto) -> CanonicalInfo | None:
    """The configuration and origin in a model's metadata; None where the model is not one of ours."""
    properties = {entry.key: entry.value for entry in model.metadata_props}
    try:
        return CanonicalInfo(
            config=AndreaConfig(**json.loads(properties[CONFIG_KEY])),
            origin=WeightsOrigin(**json.loads(properties[ORIGIN_KEY])),
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def load_graph(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file, its weights left where they are. Raises ExportError for a file that holds none."""
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)  # whatever the file is called
    except (DecodeError, OSError, ValueError) as error:
        raise ExportError(f"{path.name} is not an ONNX file: {first_line(error)}", hint="build it again") from None
    if not model.graph.node:
        raise ExportError(f"{path.name} holds no graph", hint="build it again")
    return model
