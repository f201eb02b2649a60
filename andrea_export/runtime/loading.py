"""``load``: which graph of a bundle a provider and a precision mean, opened once its files are as they were sealed.

What is not there is an error, never another one instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from andrea_export.bundle.contents import Contents, identities, read_contents
from andrea_export.bundle.layout import MANIFEST, MODEL, PLUGIN, REPORT, WEIGHTS
from andrea_export.core.errors import AndreaError, BackendUnavailable, BundleError, UsageError, ValidationError
from andrea_export.core.numbers import whole_number
from andrea_export.core.precision import ORT_PRECISIONS, OrtPrecision
from andrea_export.runtime import open as opening
from andrea_export.runtime.cores import most_threads, num_usable_cores
from andrea_export.runtime.decoder import Decoder
from andrea_export.runtime.draft import Draft
from andrea_export.runtime.model import Model
from andrea_export.sessions.onnxruntime import PROVIDERS, provider_availability, provider_row
from andrea_export.targets.ort_cpu.files import LIBRARY, OrtCpuFiles

AUTO = "auto"


def load(
    bundle: str | Path,
    *,
    provider: str = AUTO,
    precision: str | None = None,
    draft: str | None = None,
    num_threads: int | None = None,
    allow_cpu_nodes: bool = False,
    verify: bool = True,
) -> Model:
    """Opens a bundle to generate with.

    ``provider``: cpu, cuda, tensorrt, tensorrt-rtx, or auto: CUDA where it works, else the CPU. ``precision``: fp32,
    int8 or int4 on the CPU (fp32 where left out), fp32 elsewhere. ``draft``: a cheaper precision of the bundle, which
    proposes the tokens of a single text on the CPU, for ``precision`` to verify several in one run: the same text,
    sooner, or where that does not pay, as soon (``Model.draft.record``). ``num_threads``: the usable physical cores
    where left out. ``allow_cpu_nodes``: let a GPU provider leave nodes to the CPU; without it that is an error that
    names them. ``verify``: check every file that is read against the manifest; a damaged one is an error before
    anything runs.

    Raises: BundleError (no bundle, damaged, or without that precision), ValidationError (it failed its own),
    UsageError, BackendUnavailable, RunError.
    """
    if provider not in (AUTO, *PROVIDERS):
        raise UsageError(f"unknown provider '{provider}'", hint=f"providers: {', '.join((AUTO, *PROVIDERS))}")
    manifest = identities(Path(bundle), [MANIFEST])
    contents = read_contents(Path(bundle))
    if contents.verdict != "pass":
        raise ValidationError(
            f"bundle {bundle} {_why_not(contents.verdict)} when it was built, so it is not run",
            hint=f"see {Path(bundle) / REPORT}, or run `andrea-export validate {bundle}`",
        )
    if num_threads is not None and not 1 <= (num_threads := whole_number("num_threads", num_threads)) <= most_threads():
        raise UsageError(
            f"{num_threads} threads asked for, expected 1 to {most_threads()}",
            hint=f"left out, it is the {num_usable_cores()} physical cores this process may use",
        )
    asked = _Asked(
        bundle=contents,
        manifest=manifest,
        precision=precision,
        draft=draft,
        num_threads=num_threads or num_usable_cores(),
        allow_cpu_nodes=allow_cpu_nodes,
        verify=verify,
    )
    if draft is not None:
        return _loaded_with_draft(asked, provider)
    return _loaded_anywhere(asked) if provider == AUTO else _loaded(asked, provider)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A bundle, and what ``load`` was asked for beside the provider. ``manifest``: the file it was read from."""

    bundle: Contents
    manifest: tuple[object, ...]
    precision: str | None
    draft: str | None
    num_threads: int
    allow_cpu_nodes: bool
    verify: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """The graph that a provider and a precision mean: the CPU's own, or (``own`` is None) the canonical one."""

    provider: str
    precision: OrtPrecision
    own: OrtCpuFiles | None
    files: tuple[str, ...]
    """Every file that is read; the one that decodes is the first."""

    @property
    def checked_first(self) -> list[str]:
        """What is parsed is checked before it is, and all of it where opening takes minutes."""
        return [name for name in self.files if self.own is None or name.endswith((".onnx", LIBRARY))]


def _loaded_anywhere(asked: _Asked) -> Model:
    """On CUDA where it works, else on the CPU.

    TensorRT's providers build an engine for minutes before the first token, so they are taken where they are named.
    """
    passed_over: list[str] = []
    if asked.precision in (None, "fp32") and provider_availability("cuda").available:
        try:
            return _loaded(replace(asked, allow_cpu_nodes=True), "cuda")
        except BackendUnavailable as error:
            passed_over.append(str(error))
    model = _loaded(asked, "cpu")
    return replace(model, passed_over=(*passed_over, *model.passed_over))


def _loaded(asked: _Asked, provider: str) -> Model:
    bundle = asked.bundle
    graph = _graph(bundle, provider, asked.precision)
    decoder = _unchanged(asked, graph)
    return Model(
        bundle=bundle,
        provider=provider,
        precision=graph.precision,
        graph=graph.files[0],
        num_threads=asked.num_threads,
        passed_over=decoder.passed_over,
        decoder=decoder,
    )


def _loaded_with_draft(asked: _Asked, provider: str) -> Model:
    """On the CPU. Raises: UsageError for a draft that cannot be one, and what ``load`` raises."""
    bundle = asked.bundle
    if provider not in (AUTO, "cpu"):
        raise UsageError(f"provider {provider} takes no draft", hint="use --provider cpu")
    precision, cheaper = (_known_precision(wanted) for wanted in (asked.precision, asked.draft))
    if ORT_PRECISIONS.index(cheaper) <= ORT_PRECISIONS.index(precision):
        raise UsageError(
            f"{cheaper} is no cheaper than {precision}, so it drafts nothing for it",
            hint=f"from dear to cheap: {', '.join(ORT_PRECISIONS)}",
        )
    if lacking := [needed for needed in (precision, cheaper) if needed not in bundle.ort_cpu]:
        raise UsageError(
            f"bundle {bundle.path} has no {' and no '.join(lacking)} graph for the CPU, which a draft needs",
            hint=f"build it with --target ort-cpu --precision {precision} --precision {cheaper}",
        )
    own = bundle.ort_cpu[precision]
    if asked.verify:
        bundle.check([REPORT])
    off_by = 2 * bundle.largest_error(Path(own.graph).stem, "logits")
    model = _loaded(asked, "cpu")
    try:
        proposing = _unchanged(asked, _graph(bundle, "cpu", cheaper))
    except BaseException:
        model.close()
        raise
    draft = Draft(precision=cheaper, proposing=proposing, verifying=model.decoder, off_by=off_by)
    return replace(model, draft=draft)


def _unchanged(asked: _Asked, graph: _Graph) -> Decoder:
    """The decoder on files that are what they were when the manifest was read. Raises: as ``load``."""
    bundle = asked.bundle
    before = (*asked.manifest, *identities(bundle.path, graph.files))
    try:
        decoder = _verified(asked, graph) if asked.verify else _opened(asked, graph)
    except MemoryError:
        raise BackendUnavailable(f"bundle {bundle.path}: out of memory", hint="use int8 or int4") from None
    if identities(bundle.path, (MANIFEST, *graph.files)) != before:
        decoder.close()
        raise BundleError(f"bundle {bundle.path} was changed while it was loaded", hint="load it again")
    return decoder


def _graph(bundle: Contents, provider: str, precision: str | None) -> _Graph:
    """Raises: UsageError (an unknown precision, or not on this provider), BundleError (not built)."""
    wanted = _precision(bundle, provider, precision)
    own = bundle.ort_cpu.get(wanted) if provider == "cpu" else None
    if own is not None:
        library = (LIBRARY,) if LIBRARY in bundle.files else ()
        files = (*own.all, *library) if own.weights is not None else (*own.all, WEIGHTS)
    else:
        # One that is there and was not sealed is an error; one that is not there is told by whoever would load it.
        is_there = PLUGIN in bundle.files or (bundle.path / PLUGIN).exists()
        files = (MODEL, WEIGHTS, *([PLUGIN] if provider_row(provider).takes_plugins and is_there else []))
    return _Graph(provider=provider, precision=wanted, own=own, files=files)


def _opened(asked: _Asked, graph: _Graph) -> Decoder:
    folder, config = asked.bundle.path, asked.bundle.config
    if graph.own is not None:
        takes_turns = asked.draft is not None
        library = folder / LIBRARY if LIBRARY in graph.files else None
        return opening.open_shared(
            folder, graph.own, config, asked.num_threads, library=library, takes_turns=takes_turns
        )
    return opening.open_growing(folder, graph.provider, config, asked.num_threads, asked.allow_cpu_nodes)


def _verified(asked: _Asked, graph: _Graph) -> Decoder:
    """The decoder, once every file was found to be the one that was sealed.

    Weights are hashed while it opens: for fp32 that is a third of the time. Raises: BundleError, and what ``_opened``
    raises.
    """
    bundle = asked.bundle
    bundle.check(graph.files, hashed=False)
    bundle.check(graph.checked_first)
    weights: Sequence[str] = [name for name in graph.files if name not in graph.checked_first]
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            checked = pool.submit(bundle.check, weights)
        except RuntimeError as error:  # can't start new thread
            raise MemoryError(str(error)) from None
        try:
            decoder = _opened(asked, graph)
        except AndreaError:
            checked.result()  # a file that is not the one that was sealed is why
            raise
        try:
            checked.result()
        except BaseException:
            decoder.close()
            raise
    return decoder


def _precision(bundle: Contents, provider: str, precision: str | None) -> OrtPrecision:
    """The precision meant; fp32 where none is. Raises: UsageError (unknown, or not on this provider), BundleError."""
    wanted = _known_precision(precision)
    if wanted != "fp32" and provider != "cpu":
        raise UsageError(f"provider {provider} runs fp32 only, got {wanted}", hint="use --provider cpu")
    if wanted != "fp32" and wanted not in bundle.ort_cpu:
        has = ", ".join(dict.fromkeys(("fp32", *bundle.ort_cpu)))
        raise BundleError(
            f"bundle {bundle.path} has no {wanted} (it has {has})",
            hint=f"build it with --target ort-cpu --precision {wanted}",
        )
    return wanted


def _known_precision(precision: str | None) -> OrtPrecision:
    """The precision meant; fp32 where none is. Raises: UsageError."""
    wanted = next((known for known in ORT_PRECISIONS if known == ("fp32" if precision is None else precision)), None)
    if wanted is None:
        raise UsageError(f"unknown precision '{precision}'", hint=f"precisions: {', '.join(ORT_PRECISIONS)}")
    return wanted


def _why_not(verdict: str) -> str:
    return {"fail": "failed its validation", "not-measured": "was not measured"}.get(verdict, f"had verdict {verdict}")
