"""OpenVINO on the stateful model that optimum-intel exports, driven by its own infer request."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino

VERSIONS = {"openvino": openvino.__version__}


class Request:
    """One infer request; its state is the cache."""

    def __init__(self, compiled: Any) -> None:
        self.request = compiled.create_infer_request()
        self.names = {name for entry in compiled.inputs for name in entry.names}

    def prefill(self, rows: list[list[int]]) -> None:
        """A fresh state, one inference."""
        self.request.reset_state()
        self._infer(np.array(rows, np.int64), 0)

    def logits(self, rows: list[list[int]]) -> Any:
        self.request.reset_state()
        return self._infer(np.array(rows, np.int64), 0)[:, -1]

    def decode(self, prompt: list[int], number: int) -> tuple[float, float]:
        """Greedy, one token an inference."""
        self.request.reset_state()
        ids, past, stamps = np.array([prompt], np.int64), 0, []
        for _ in range(number):
            logits = self._infer(ids, past)
            past += ids.shape[1]
            ids = logits[:, -1].argmax(axis=-1)[:, None].astype(np.int64)
            stamps.append(time.perf_counter())
        return stamps[0], stamps[-1]

    def _infer(self, ids: Any, past: int) -> Any:
        rows, length = ids.shape
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones((rows, past + length), np.int64),
            "position_ids": np.broadcast_to(np.arange(past, past + length, dtype=np.int64), (rows, length)),
            "beam_idx": np.arange(rows, dtype=np.int32),
        }
        self.request.infer({name: value for name, value in feeds.items() if name in self.names}, share_inputs=True)
        return self.request.get_tensor("logits").data


def load(variant: str, folder: Path, threads: int) -> Request:
    """fp32 with an fp32 cache; int8 and int4 weights as OpenVINO runs them by default."""
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    if variant == "fp32":
        options |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    model = folder / f"openvino-{variant}" / "openvino_model.xml"
    return Request(openvino.Core().compile_model(str(model), "CPU", options))


def convert(variant: str, folder: Path) -> None:
    """Exports through optimum-intel; int4 is symmetric in groups of 64, head and embedding in int8."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    config = {
        "fp32": None,
        "int8": OVWeightQuantizationConfig(bits=8),
        "int4": OVWeightQuantizationConfig(bits=4, sym=True, group_size=64),
    }[variant]
    model = OVModelForCausalLM.from_pretrained(
        folder / "hf", export=True, compile=False, load_in_8bit=False, quantization_config=config
    )
    model.save_pretrained(folder / f"openvino-{variant}")
