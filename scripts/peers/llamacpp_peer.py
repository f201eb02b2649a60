"""llama.cpp through llama-cpp-python's low-level binding."""

import ctypes
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

VERSIONS = {"llama-cpp-python": llama_cpp.__version__}
_MAX_ROWS, _CONTEXT = 8, 1024
_TYPES = {
    "fp32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    "int8": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "int4": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
}


class Context:
    """A model and one context for up to eight rows."""

    def __init__(self, path: Path, threads: int) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = _CONTEXT * 2
        params.n_batch = params.n_ubatch = _CONTEXT
        params.n_seq_max = _MAX_ROWS
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(_CONTEXT, 0, _MAX_ROWS)
        self.num_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def prefill(self, rows: list[list[int]]) -> None:
        """All rows in one batch; logits of each one's last token."""
        self._clear()
        self._decode(
            [(token, place, row) for row, ids in enumerate(rows) for place, token in enumerate(ids)], len(rows[0])
        )

    def logits(self, rows: list[list[int]]) -> Any:
        """Next-token logits, ``[1, V]``, of one row."""
        self.prefill(rows)
        found = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.num_vocab,))
        return found[None].copy()

    def decode(self, prompt: list[int], number: int) -> tuple[float, float]:
        """Greedy."""
        self._clear()
        self._decode([(token, place, 0) for place, token in enumerate(prompt)], len(prompt))
        stamps = []
        for step in range(number):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.num_vocab,))
            token = int(logits.argmax())
            stamps.append(time.perf_counter())
            if step + 1 < number:
                self._decode([(token, len(prompt) + step, 0)], 1)
        return stamps[0], stamps[-1]

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def _decode(self, tokens: list[tuple[int, int, int]], length: int) -> None:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for index, (token, place, row) in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, place
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
            batch.logits[index] = place == length - 1 or len(tokens) == 1
        if llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)


def load(variant: str, folder: Path, threads: int) -> Context:
    """The GGUF file in f32, q8_0 or q4_0."""
    return Context(folder / f"llamacpp-{variant}.gguf", threads)


def convert(variant: str, folder: Path) -> None:
    """Writes an f32 GGUF from the checkpoint, and quantises it with llama.cpp's own rule."""
    whole = folder / "llamacpp-fp32.gguf"
    if not whole.exists():
        _write_gguf(folder, whole)
    if variant == "fp32":
        return
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _TYPES[variant]
    target = folder / f"llamacpp-{variant}.gguf"
    if llama_cpp.llama_model_quantize(str(whole).encode(), str(target).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama_model_quantize failed for {variant}")


def _write_gguf(folder: Path, path: Path) -> None:
    import json

    import gguf

    config = json.loads((folder / "hf" / "config.json").read_text(encoding="utf-8"))
    weights = np.load(folder / "weights.npz")
    writer: Any = gguf.GGUFWriter(str(path), "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output"}
    names |= {"ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    for name, array in weights.items():
        parts = name.removeprefix("transformer.").split(".")
        kind = parts[-1]
        if parts[0] == "h":
            layer = ".".join(parts[2:-1])
            target = f"blk.{parts[1]}.{names[layer]}.{kind}"
            array = array.T if kind == "weight" and "c_" in layer else array
        else:
            target = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}[parts[0]] + f".{kind}"
        writer.add_tensor(target, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
