"""ANDREA-120M engines with the plugin and without, compared with torch layer by layer.

Inner layers are read through debug tensors, in engines built as the part engines builds them with those marks added.
That the marks leave fusion as it ships is checked by the number of layers of the two engines, on a GPU: without one no
engine can be opened. TensorRT may show a tensor under a name of its own, and then it is no layer that can be compared.

Without a GPU, engines of andrea-tiny are built where that is possible; nothing of a built engine can be read there.
"""

from __future__ import annotations

from typing import Any

from engine_builds import PRECISIONS, Model, backend_of, engine_name, flavours_here, model_of, request_of
from engine_layers import LayerComparison, References, compare_layers, torch_references
from gpu_parts import Built, NotAvailable, PartResult


def run(built: Built, result: PartResult) -> None:
    """One row an engine. Raises: NotAvailable with what is missing."""
    from andrea_export.compare.inputs import seeded_cases

    flavours = flavours_here()
    model = model_of(built)
    precision = PRECISIONS[0]
    result.note(f"{model.preset} in {precision}, seeded weights that are not trained")
    references = None
    if built.device == "cuda":
        references = torch_references(model.loaded.model, seeded_cases(model.loaded.config), precision)
    for target in flavours:
        for plugin in (True, False):
            _read(result, built, model, target, references, plugin=plugin)
    if built.device != "cuda":
        raise NotAvailable("torch sees no CUDA GPU on this machine: engines were built, not run")


def _read(
    result: PartResult, built: Built, model: Model, target: str, references: References | None, *, plugin: bool
) -> None:
    from debug_worker import COMMAND

    from andrea_export.core.errors import AndreaError, BackendUnavailable
    from andrea_export.core.progress import Silent

    name = engine_name(target, PRECISIONS[0], plugin=plugin)
    engine = model.folder / f"{name}-debug.plan"
    backend = backend_of(target)(worker=COMMAND)
    library = built.plugin if plugin else None
    row = result.row({"engine": name})
    try:
        seconds = result.seconds_left()
        request = request_of(model, target, PRECISIONS[0], library=library, output=engine, seconds=seconds)
        row["plugin layers"] = backend.build(request, Silent()).num_plugin_layers
        result.keep()
        with backend.open(engine) as session:
            if references is None:
                raise BackendUnavailable("a rehearsal compares nothing")
            found = compare_layers(session, references)
    except BackendUnavailable as reason:
        row["layer by layer"] = f"not available: {reason}"
        result.keep()
        return
    except AndreaError as error:  # a GPU that TensorRT-RTX does not support ends here, in one line
        result.fail(f"{name}: {error}")
        return
    finally:
        engine.unlink(missing_ok=True)
    row |= cells_of(found)
    result.keep()
    layers = model.folder / f"{name}.layers"
    shipped = int(layers.read_text()) if layers.is_file() else None
    judge(result, name, found, plugin=plugin, shipped_layers=shipped)


def cells_of(found: LayerComparison) -> dict[str, Any]:
    """The comparison as cells of a row."""
    return {
        "layers compared": len(found.compared),
        "out of budget": ", ".join(found.out_of_budget) or "none",
        "largest share of its budget": found.worst_share,
        "of layer": found.worst_layer,
        "fused away": len(found.fused_away),
        "could not be read": len(found.unread),
        "engine layers": found.num_engine_layers,
    }


def judge(result: PartResult, name: str, found: LayerComparison, *, plugin: bool, shipped_layers: int | None) -> None:
    """Failures and notes of one engine.

    A plugin ends fusion, so each block must show a layer; in a native engine a whole model may be one fused layer, but
    an engine that shows nothing at all was not read.
    """
    result.expect(not found.out_of_budget, f"{name}: out of budget: {', '.join(found.out_of_budget)}")
    result.expect(not found.other_shape, f"{name}: another shape than torch's: {'; '.join(found.other_shape)}")
    result.expect(not found.unread, f"{name}: could not be read: {'; '.join(found.unread)}")
    silent = ", ".join(map(str, found.silent_blocks))
    if plugin:
        result.expect(not silent, f"{name}: no inner layer was compared in the blocks {silent}")
    else:
        shown = found.num_inner + len(found.others)
        result.expect(shown > 0, f"{name}: the engine showed no debug tensor")
        if silent:
            result.note(f"{name}: no inner layer was compared in the blocks {silent}")
    if shipped_layers is None:
        result.note(f"{name}: the engine as shipped was not run here: whether it has the same layers is not known")
    else:
        same = found.num_engine_layers == shipped_layers
        result.expect(same, f"{name}: {found.num_engine_layers} layers with debug tensors, {shipped_layers} as shipped")
    if found.fused_away:
        result.note(f"{name}: fused away, not compared: {', '.join(found.fused_away)}")
    if found.others:
        result.note(f"{name}: {len(found.others)} tensors of the builder's own: {', '.join(found.others[:8])}")
