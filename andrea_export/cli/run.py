"""``andrea-export run``: generation from a bundle through onnxruntime, streamed as it comes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.options import (
    DraftOption,
    JsonOption,
    OrtPrecisionOption,
    ProviderChoice,
    ProviderOption,
    ThreadsOption,
    option,
    tokens_from_ids,
    tokens_from_prompt,
)
from andrea_export.cli.output import emit, emit_json, note
from andrea_export.core.errors import UsageError

if TYPE_CHECKING:
    from andrea_export.runtime import Model
    from andrea_export.runtime.draft import Draft
    from andrea_export.tokens.tokenizer import Tokenizer

TokensOption = Annotated[str | None, option("--tokens", "The prompt as token ids: 5,17,42.", "IDS")]
PromptOption = Annotated[str | None, option("--prompt", "The prompt as text, for the bundle's own tokenizer.", "TEXT")]
NumNewOption = Annotated[int, option("--max-new-tokens", "How many tokens to generate.", "N", default_shown=True)]
TemperatureOption = Annotated[float | None, option("--temperature", "Draw tokens, above 0. Left out: greedy.", "T")]
TopKOption = Annotated[int | None, option("--top-k", "Draw from the K likeliest tokens.", "K")]
TopPOption = Annotated[
    float | None, option("--top-p", "Draw from the fewest tokens of at least this probability.", "P")
]
SeedOption = Annotated[int, option("--seed", "The same seed draws the same tokens.", "S", default_shown=True)]
StopOption = Annotated[list[int] | None, option("--stop", "A token id that ends the text. Repeat it.", "ID")]
AllowCpuOption = Annotated[
    bool, typer.Option("--allow-cpu-nodes", help="Let a GPU provider leave nodes to the CPU; else that is an error.")
]


def run(
    bundle: Annotated[Path, typer.Argument(help="A folder that andrea-export build made.", metavar="BUNDLE")],
    *,
    tokens: TokensOption = None,
    prompt: PromptOption = None,
    max_new_tokens: NumNewOption = 16,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = 0,
    stop: StopOption = None,
    provider: ProviderOption = ProviderChoice.AUTO,
    precision: OrtPrecisionOption = None,
    draft: DraftOption = None,
    threads: ThreadsOption = None,
    allow_cpu_nodes: AllowCpuOption = False,
    as_json: JsonOption = False,
) -> None:
    """Generate from a bundle, with a KV cache.

    New tokens go to stdout as they come, as text after --prompt, as ids after --tokens; timings go to stderr. Prompt
    and new tokens together must fit the model's context: a longer request is refused before anything runs.
    """
    from andrea_export.bundle.contents import read_contents
    from andrea_export.runtime import Sampling, load

    if (tokens is None) == (prompt is None):
        raise UsageError(
            "give the prompt by --prompt or by --tokens, and by one of them only", hint="see andrea-export run --help"
        )
    given = tokens_from_ids(tokens) if tokens is not None else None
    contents = read_contents(bundle)
    contents.check()  # every file, not only those that this run reads
    tokenizer = contents.tokenizer() if prompt is not None else None
    ends = stop if stop or tokenizer is None else contents.text.stop
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=tuple(ends or ()))
    with load(
        bundle,
        provider=provider.value,
        precision=None if precision is None else precision.value,
        draft=None if draft is None else draft.value,
        num_threads=threads,
        allow_cpu_nodes=allow_cpu_nodes,
        verify=True,  # what has not changed since is not hashed again
    ) as model:
        if tokenizer is not None:
            given = tokens_from_prompt(prompt or "", model.config.vocab_size, tokenizer)
        ids = given or ()
        new_tokens = model.generate(ids, max_new_tokens=max_new_tokens, sampling=sampling)
        if not model.bundle.origin.trained:
            note(f"note: {model.bundle.origin}: the tokens mean nothing")
        for reason in model.passed_over:
            note(f"note: passed over {reason}")
        generated, times_ms, text = _stream(new_tokens, tokenizer, silent=as_json)
        if as_json:
            emit_json(_document(model, ids, generated, text))
        _note_speed(model, len(ids), times_ms)
        _note_draft(model)


def _stream(
    tokens: Iterable[int], tokenizer: Tokenizer | None, *, silent: bool
) -> tuple[list[int], list[float], str | None]:
    """The tokens, the milliseconds each took, and the text they are; shown as they come unless silent."""
    stream = tokenizer.stream() if tokenizer is not None else None
    generated: list[int] = []
    times_ms: list[float] = []
    pieces: list[str] = []
    begin = time.perf_counter()
    for token in tokens:
        now = time.perf_counter()
        times_ms.append((now - begin) * 1e3)
        piece = stream.feed(token) if stream is not None else f"{',' if generated else ''}{token}"
        generated.append(token)
        pieces.append(piece)
        if not silent:
            emit(piece, end="")
        begin = time.perf_counter()
    rest = stream.finish() if stream is not None else ""
    if not silent:
        emit(rest)
    return generated, times_ms, "".join([*pieces, rest]) if stream is not None else None


def _document(model: Model, prompt: Sequence[int], generated: list[int], text: str | None) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "tokens": generated,
        **({} if text is None else {"text": text}),
        "provider": model.provider,
        "precision": model.precision,
        "graph": model.graph,
        **({} if model.draft is None else {"draft": _draft_document(model.draft)}),
        "threads": model.num_threads,
        "weights": str(model.bundle.origin),
        "trained": model.bundle.origin.trained,
    }


def _note_speed(model: Model, num_prompt: int, times_ms: list[float]) -> None:
    if not times_ms:
        note(f"a stop token ended the text at once, on {model.name}")
        return
    rest_ms = times_ms[1:]
    speed = f", then {1e3 * len(rest_ms) / sum(rest_ms):.1f} tokens/s" if rest_ms else ""
    note(f"{num_prompt} prompt tokens and the first new one in {times_ms[0]:.1f} ms{speed}, on {model.name}")


def _draft_document(draft: Draft) -> dict[str, Any]:
    return {"precision": draft.precision, **({} if draft.record is None else asdict(draft.record))}


def _note_draft(model: Model) -> None:
    if model.draft is None or (record := model.draft.record) is None:
        return
    if record.num_proposed:
        note(
            f"draft {model.draft.precision}: {record.num_accepted} of {record.num_proposed} proposed tokens accepted "
            f"in {record.num_verified} runs, {record.num_plain} tokens by single steps"
        )
    if record.off is not None:
        note(f"note: draft {model.draft.precision} switched off: {record.off}")
