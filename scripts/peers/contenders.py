"""Who is compared: what each peer's environment is made of, the file that drives it, and its variants."""

from __future__ import annotations

from dataclasses import dataclass

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
