"""Checkpoints as safetensors, for a training run: ``save_checkpoint`` writes what ``build --checkpoint`` reads."""

from andrea_export.weights.load import load_model, save_checkpoint

__all__ = ["load_model", "save_checkpoint"]
