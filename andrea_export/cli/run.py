"""``andrea-export run``: greedy generation from a bundle through onnxruntime, tokens streamed as they come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.options import JsonOption, ProviderChoice, tokens_from_text
from andrea_export.cli.output import emit, emit_json, note
from andrea_export.errors import ValidationError

if TYPE_CHECKING:
    from andrea_export.generation import GeneratedToken


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("run", short_help="Generate tokens greedily from a bundle.")(run)


def run(
    bundle: Annotated[Path, typer.Argument(help="A folder that andrea-export build made.", metavar="BUNDLE")],
    tokens: Annotated[
        str, typer.Option("--tokens", help="The prompt as token ids: 5,17,42.", metavar="IDS", show_default=False)
    ],
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="How many tokens to generate.", metavar="N")
    ] = 16,
    provider: Annotated[
        ProviderChoice,
        typer.Option(
            "--provider",
            help="Where onnxruntime runs: cpu, cuda, tensorrt or tensorrt-rtx. Never another one than asked for.",
            metavar="PROVIDER",
        ),
    ] = ProviderChoice.CPU,
    as_json: JsonOption = False,
) -> None:
    """Generate tokens greedily from a bundle, with a KV cache.

    Prints the new tokens' ids on stdout as they come; timings go to stderr. Prompt and new tokens together must fit the
    model's context: a longer request is refused before anything runs, never cut short.
    """
    prompt = tokens_from_text(tokens)

    from andrea_export.backends.onnxruntime import open_session
    from andrea_export.bundle import open_bundle
    from andrea_export.generation import check_generation, greedy

    opened = open_bundle(bundle)
    if opened.manifest.verdict != "pass":
        raise ValidationError(
            f"bundle {bundle} {_why_not(opened.manifest.verdict)} when it was built, so it is not run",
            hint=f"see {bundle / 'report.json'}, or run `andrea-export validate {bundle}`",
        )
    check_generation(opened.config, prompt, max_new_tokens)
    if not opened.origin.trained:
        note(f"note: {opened.origin}: the tokens mean nothing")
    generated: list[GeneratedToken] = []
    with open_session(opened.model, provider.value) as session:
        for token in greedy(session, opened.config, prompt, max_new_tokens):
            if not as_json:
                emit(f"{',' if generated else ''}{token.id}", end="")
            generated.append(token)
    if as_json:
        emit_json(
            {
                "prompt": list(prompt),
                "tokens": [token.id for token in generated],
                "provider": provider.value,
                "weights": str(opened.origin),
                "trained": opened.origin.trained,
            }
        )
    else:
        emit()
    first_ms, rest_ms = generated[0].step_ms, [token.step_ms for token in generated[1:]]
    speed = f", then {1e3 * len(rest_ms) / sum(rest_ms):.1f} tokens/s" if rest_ms else ""
    note(f"{len(prompt)} prompt tokens and the first new one in {first_ms:.1f} ms{speed}, on {session.name}")


def _why_not(verdict: str) -> str:
    return {"fail": "failed its validation", "not-measured": "was not measured"}.get(verdict, f"had verdict {verdict}")
