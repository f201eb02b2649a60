"""ANDREA-120M in torch with every GELU computed by the built library, layer by layer against torch's own GELU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpu_parts import STORAGE_TYPES, Built, PartResult, PluginOnTensors

from andrea_model.config import PRESETS, AndreaConfig
from andrea_model.model import Andrea, Gelu

# A GELU in the storage type is off from the exact one by half an ulp of rounding at the least, the plugin's and torch's
# both; what comes after it carries that on. So the two runs are held to k times the distance between torch in this type
# and torch in fp64, layer by layer, with k = 2: each may be as far from the exact run, on opposite sides.
_K = 2.0


def run(built: Built, result: PartResult) -> None:
    """One row a type: the layers compared, the largest distance, the budget it had, the first layer out of budget."""
    preset = "andrea-120m" if built.device == "cuda" else "andrea-tiny"
    config = PRESETS[preset]
    result.note(f"{preset}, seeded weights that are not trained, 2 x 128 tokens, on {built.device}")
    tokens = torch.randint(
        0, config.vocab_size, (2, min(128, config.n_ctx)), generator=torch.Generator().manual_seed(3)
    )
    exact = _layers(_model(config).double().to(built.device), tokens.to(built.device), None)
    plugin = PluginOnTensors(built)
    try:
        for storage, dtype in STORAGE_TYPES.items():
            model = _model(config).to(device=built.device, dtype=dtype)
            theirs = _layers(model, tokens.to(built.device), None)
            ours = _layers(model, tokens.to(built.device), plugin)
            result.row(_compare(result, storage, ours, theirs, exact))
    finally:
        plugin.close()


def _model(config: AndreaConfig) -> Andrea:
    """The same weights each time; the MLP's first matrix is large, so that GELU is used from -8 to 8."""
    generator = torch.Generator().manual_seed(1)
    model = Andrea(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                scale = 0.1 if ".mlp.fc." in name else 0.02
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return model.eval()


def _layers(
    model: Andrea, tokens: torch.Tensor, gelu: Callable[[torch.Tensor], torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """Every GELU's and every block's output, and the logits; with `gelu` in place of torch's, if given."""
    seen: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, Gelu) or name.endswith("mlp_residual"):

            def hook(
                module: torch.nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor, name: str = name
            ) -> torch.Tensor:
                if gelu is not None and isinstance(module, Gelu):
                    output = gelu(arguments[0])
                seen[name] = output.detach()
                return output

            hooks.append(module.register_forward_hook(hook))
    with torch.no_grad():
        logits, _ = model(tokens)
    for handle in hooks:
        handle.remove()
    return {**seen, "logits": logits}


def _compare(
    result: PartResult,
    storage: str,
    ours: dict[str, torch.Tensor],
    theirs: dict[str, torch.Tensor],
    exact: dict[str, torch.Tensor],
) -> dict[str, object]:
    worst, worst_layer, first_out = 0.0, "", ""
    for name, truth in exact.items():
        scale = truth.norm().item()
        distance = (ours[name].double() - theirs[name].double()).norm().item() / scale
        budget = _K * (theirs[name].double() - truth).norm().item() / scale
        share = distance / budget if budget > 0 else float(distance > 0)
        if share > worst:
            worst, worst_layer = share, name
        if distance > budget and not first_out:
            first_out = name
    result.expect(first_out == "", f"{storage}: {first_out} is the first layer out of budget")
    final = (ours["logits"].double() - exact["logits"]).abs().max().item()
    torch_final = (theirs["logits"].double() - exact["logits"]).abs().max().item()
    return {
        "type": storage,
        "layers": len(exact),
        "largest share of its budget": round(worst, 3),
        "at": worst_layer,
        "logits, max abs error: plugin": final,
        "torch": torch_final,
        "first out of budget": first_out or "none",
    }
