"""A bundle as a model: ``load`` opens it on one provider, ``Model.generate`` yields tokens.

Owns which graph of a bundle a provider and a precision mean; what is not there is an error, never another one instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from andrea_export.bundle.contents import MANIFEST, MODEL, PLUGIN, REPORT, WEIGHTS, Contents, identities, read_contents
from andrea_export.core.errors import AndreaError, BackendUnavailable, BundleError, UsageError, ValidationError
from andrea_export.core.numbers import whole_number
from andrea_export.core.precision import ORT_PRECISIONS, OrtPrecision
from andrea_export.runtime.cores import most_threads, num_usable_cores
from andrea_export.runtime.engine import Engine, LogitsBV
from andrea_export.runtime.sampling import Sampler, Sampling, checked_sampling
from andrea_export.sessions.onnxruntime import PROVIDERS, provider_availability, provider_row
from andrea_export.tokens.prompt import check_generation, check_prompt, token_ids
from andrea_model.config import AndreaConfig

AUTO = "auto"
_AUTO_ORDER = ("cuda", "cpu")
"""TensorRT's providers build an engine for minutes before the first token, so they are taken where they are named."""


@dataclass(slots=True, kw_only=True)
class Model:
    """An opened bundle. A context manager; ``close`` releases its sessions. One text, or one batch, at a time."""

    bundle: Contents
    provider: str
    """Where it runs."""
    precision: str
    graph: str
    """The file that decodes."""
    num_threads: int
    passed_over: tuple[str, ...] = ()
    """What ``auto`` tried first, and why it could not be; a provider this onnxruntime does not have is not tried."""
    _engine: Engine | None
    _texts_begun: int = 0
    """The engine holds one text, or batch, at a time: a generation that is not the last one begun is over."""

    @property
    def config(self) -> AndreaConfig:
        """The model's shape."""
        return self.bundle.config

    @property
    def name(self) -> str:
        """The engine's name, for reports."""
        return self.engine.name

    @property
    def engine(self) -> Engine:
        """What runs. Raises UsageError once the model is closed."""
        if self._engine is None:
            raise UsageError("the model is closed")
        return self._engine

    def generate(
        self, prompt: Sequence[int], *, max_new_tokens: int, sampling: Sampling | None = None
    ) -> Iterator[int]:
        """Yields new tokens as they come: ``max_new_tokens`` of them, or fewer where a stop token ends the text.

        Prompt and new tokens must fit the context; a request that does not is refused before anything runs. What the
        model begins next ends this text: asked for more of it then, the iterator says so.
        Raises: UsageError (at once, or for such an iterator), RunError, BackendUnavailable (out of memory).
        """
        steps = self._steps(*self._checked([prompt], max_new_tokens, sampling))
        return (tokens[0] for tokens in steps if tokens[0] is not None)

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, sampling: Sampling | None = None
    ) -> Iterator[list[int | None]]:
        """Yields a list a step, one token a row; None for a row that has ended. A row gives what it gives alone.

        Raises: as ``generate``.
        """
        return self._steps(*self._checked(prompts, max_new_tokens, sampling))

    def prefill(self, prompts: Sequence[Sequence[int]]) -> LogitsBV:
        """The logits ``[B, V]`` after each prompt, which may fill the context. Overwritten by the next call.

        Raises: as ``generate``.
        """
        rows = _rows(prompts)
        for row in rows:
            check_prompt(self.config, row)
        return self._begin(rows, 0)

    def close(self) -> None:
        """Releases what the model holds; once is enough."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling | None
    ) -> tuple[list[list[int]], int, Sampling]:
        """The same in Python's own numbers. Raises: UsageError for what cannot be generated from."""
        rows, number = _rows(prompts), whole_number("max_new_tokens", max_new_tokens)
        for row in rows:
            check_generation(self.config, row, number)
        return rows, number, checked_sampling(Sampling() if sampling is None else sampling, self.config.vocab_size)

    def _steps(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling
    ) -> Iterator[list[int | None]]:
        samplers = [Sampler(sampling) for _ in prompts]
        ended = [False] * len(prompts)
        fed = [0] * len(prompts)
        logits_BV = self._begin(prompts, max_new_tokens)
        own = self._texts_begun
        for number in range(max_new_tokens):
            tokens: list[int | None] = []
            for row, sampler in enumerate(samplers):
                if not ended[row]:
                    fed[row] = sampler.pick(logits_BV[row])
                    ended[row] = sampler.ends(fed[row])
                tokens.append(None if ended[row] else fed[row])
            if all(ended):
                return
            yield tokens
            if number + 1 < max_new_tokens:
                engine = self.engine  # a model that was closed meanwhile says so
                if own != self._texts_begun:
                    raise UsageError(
                        "this text was left for another one, and cannot be gone on with",
                        hint="take all its tokens first, or load the bundle a second time: the weights are shared",
                    )
                logits_BV = engine.step(fed)

    def _begin(self, prompts: Sequence[Sequence[int]], num_new: int) -> LogitsBV:
        """The logits after each prompt, with room for new tokens. Raises: as ``Engine.start``."""
        engine = self.engine
        self._texts_begun += 1
        return engine.start(prompts, max(len(prompt) for prompt in prompts) + num_new)


def _rows(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Raises: UsageError if there is no prompt, or one that holds no token ids."""
    try:
        rows = [token_ids(prompt) for prompt in prompts]
    except TypeError:
        raise UsageError(f"the prompts are {prompts!r}, expected a list of them") from None
    if not rows:
        raise UsageError("there is no prompt, expected at least one")
    return rows


def load(
    bundle: str | Path,
    *,
    provider: str = AUTO,
    precision: str | None = None,
    num_threads: int | None = None,
    allow_cpu_nodes: bool = False,
    verify: bool = True,
) -> Model:
    """Opens a bundle to generate with.

    ``provider``: cpu, cuda, tensorrt, tensorrt-rtx, or auto: CUDA where it works, else the CPU. ``precision``: fp32,
    int8 or int4 on the CPU (fp32 where left out), fp32 elsewhere. ``num_threads``: the usable physical cores where
    left out. ``allow_cpu_nodes``: let a GPU provider leave nodes to the CPU; without it that is an error naming them.
    ``verify``: check every file that is read against the manifest; a damaged one is an error before anything runs.

    Raises: BundleError (no bundle, damaged, or without that precision), ValidationError (it failed its own),
    UsageError, BackendUnavailable, RunError.
    """
    if provider not in (AUTO, *PROVIDERS):
        raise UsageError(f"unknown provider '{provider}'", hint=f"providers: {', '.join((AUTO, *PROVIDERS))}")
    manifest = identities(Path(bundle), [MANIFEST])
    opened = read_contents(Path(bundle))
    if opened.verdict != "pass":
        raise ValidationError(
            f"bundle {bundle} {_why_not(opened.verdict)} when it was built, so it is not run",
            hint=f"see {Path(bundle) / REPORT}, or run `andrea-export validate {bundle}`",
        )
    if num_threads is not None and not 1 <= (num_threads := whole_number("num_threads", num_threads)) <= most_threads():
        raise UsageError(
            f"{num_threads} threads asked for, expected 1 to {most_threads()}",
            hint=f"left out, it is the {num_usable_cores()} physical cores this process may use",
        )
    threads = num_threads or num_usable_cores()
    if provider != AUTO:
        return _open(opened, manifest, provider, precision, threads, allow_cpu_nodes, verify)
    reasons: list[str] = []
    for name in _AUTO_ORDER:
        if name != "cpu" and (precision not in (None, "fp32") or not provider_availability(name).available):
            continue  # not a candidate: a CPU-only onnxruntime, or a precision that is the CPU's
        try:
            model = _open(opened, manifest, name, precision, threads, allow_cpu_nodes or name == "cuda", verify)
        except BackendUnavailable as error:
            if name == _AUTO_ORDER[-1]:
                raise
            reasons.append(str(error))
            continue
        model.passed_over = tuple(reasons)
        return model
    raise AssertionError("auto ends with the CPU")


def _open(
    bundle: Contents,
    manifest: tuple[object, ...],
    provider: str,
    precision: str | None,
    num_threads: int,
    allow_cpu_nodes: bool,
    verify: bool,
) -> Model:
    """``manifest``: the identity of the file that the bundle was read from."""
    from andrea_export.runtime.open import open_growing, open_shared

    wanted = _precision(bundle, provider, precision)
    own = bundle.ort_cpu.get(wanted) if provider == "cpu" else None
    if own is not None:
        files = own.all if own.weights is not None else (*own.all, WEIGHTS)
    else:
        # One that is there and was not sealed is an error; one that is not there is told by whoever would load it.
        is_there = PLUGIN in bundle.files or (bundle.path / PLUGIN).exists()
        files = (MODEL, WEIGHTS, *([PLUGIN] if provider_row(provider).takes_plugins and is_there else []))

    def opened() -> Engine:
        if own is not None:
            return open_shared(bundle.path, own, bundle.config, num_threads)
        return open_growing(bundle.path, provider, bundle.config, num_threads, allow_cpu_nodes)

    before = (*manifest, *identities(bundle.path, files))
    try:
        if verify:
            bundle.check(files, hashed=False)
            # What is parsed is checked before it is, and all of it where opening takes minutes.
            first = [name for name in files if own is None or name.endswith(".onnx")]
            bundle.check(first)
            engine = _opened_while_checked(opened, bundle, [name for name in files if name not in first])
        else:
            engine = opened()
    except MemoryError:
        raise BackendUnavailable(f"bundle {bundle.path}: out of memory", hint="use int8 or int4") from None
    if identities(bundle.path, (MANIFEST, *files)) != before:
        engine.close()
        raise BundleError(f"bundle {bundle.path} was changed while it was loaded", hint="load it again")
    return Model(
        bundle=bundle,
        provider=provider,
        precision=wanted,
        graph=files[0],
        num_threads=num_threads,
        _engine=engine,
    )


def _opened_while_checked(opened: Callable[[], Engine], bundle: Contents, weights: Sequence[str]) -> Engine:
    """The engine, once the weights too were found to be those that were sealed.

    They are hashed while it opens: for fp32 that is a third of the time. Raises: BundleError, and what ``opened``
    raises.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            checked = pool.submit(bundle.check, weights)
        except RuntimeError as error:  # can't start new thread
            raise MemoryError(str(error)) from None
        try:
            engine = opened()
        except AndreaError:
            checked.result()  # a file that is not the one that was sealed is why
            raise
        try:
            checked.result()
        except BaseException:
            engine.close()
            raise
    return engine


def _precision(bundle: Contents, provider: str, precision: str | None) -> OrtPrecision:
    """The precision meant. Raises: UsageError (none there is, or not on this provider), BundleError (not built)."""
    if precision is None:
        return "fp32"
    for known in ORT_PRECISIONS:
        if precision == known:
            if known == "fp32":
                return known
            if provider != "cpu":
                raise UsageError(f"provider {provider} runs fp32 only, got {precision}", hint="use --provider cpu")
            if known not in bundle.ort_cpu:
                has = ", ".join(dict.fromkeys(("fp32", *bundle.ort_cpu)))
                raise BundleError(
                    f"bundle {bundle.path} has no {precision} (it has {has})",
                    hint=f"build it with --target ort-cpu --precision {precision}",
                )
            return known
    raise UsageError(f"unknown precision '{precision}'", hint=f"precisions: {', '.join(ORT_PRECISIONS)}")


def _why_not(verdict: str) -> str:
    return {"fail": "failed its validation", "not-measured": "was not measured"}.get(verdict, f"had verdict {verdict}")
