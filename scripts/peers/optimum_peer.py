"""optimum-onnx: the exported decoder under its ORTModelForCausalLM, by generate."""

import importlib.metadata
import time
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from optimum.onnxruntime import ORTModelForCausalLM

VERSIONS = {name: importlib.metadata.version(name) for name in ("optimum-onnx", "onnxruntime", "transformers")}


class Decoder:
    """The model under transformers' generate."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, rows: list[list[int]]) -> None:
        """One forward pass; the exported graph gives the logits of all positions."""
        ids = torch.tensor(rows)
        self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)

    def logits(self, rows: list[list[int]]) -> Any:
        ids = torch.tensor(rows)
        return self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1].detach().numpy()

    def decode(self, prompt: list[int], number: int) -> tuple[float, float]:
        """Greedy by generate; the first token's time is that of a generate for one."""
        ids = torch.tensor([prompt])
        seconds = []
        for count in (1, number):
            begin = time.perf_counter()
            self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
            )
            seconds.append(time.perf_counter() - begin)
        return seconds[0], seconds[1]


def load(variant: str, folder: Path, threads: int) -> Decoder:
    """The exported model, fp32 or dynamically quantised."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    torch.set_num_threads(threads)
    name = "model.onnx" if variant == "fp32" else "model_quantized.onnx"
    model = ORTModelForCausalLM.from_pretrained(
        folder / f"optimum-{variant}", file_name=name, session_options=options, use_io_binding=True
    )
    return Decoder(model)


def convert(variant: str, folder: Path) -> None:
    """Exports once; int8 by optimum's own recipe for AVX-512 VNNI, per channel."""
    whole = folder / "optimum-fp32"
    if not (whole / "model.onnx").exists():
        ORTModelForCausalLM.from_pretrained(folder / "hf", export=True).save_pretrained(whole)
    if variant == "int8":
        from optimum.onnxruntime import ORTQuantizer
        from optimum.onnxruntime.configuration import AutoQuantizationConfig

        quantizer = ORTQuantizer.from_pretrained(whole, file_name="model.onnx")
        config = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        quantizer.quantize(save_dir=folder / "optimum-int8", quantization_config=config)
