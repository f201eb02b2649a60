"""A bundle as a model: ``Model.generate`` yields tokens. ``loading.py`` opens one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from andrea_export.bundle.contents import Contents
from andrea_export.core.errors import UsageError
from andrea_export.core.numbers import whole_number
from andrea_export.runtime.decoder import Decoder, Generation, LogitsBV
from andrea_export.runtime.draft import Draft
from andrea_export.runtime.sampling import Sampler, Sampling, checked_sampling
from andrea_export.tokens.tokenizer import Tokenizer, check_generation, check_prompt, token_ids
from andrea_model.config import AndreaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An opened bundle. A context manager; ``close`` releases its sessions.

    It holds nothing of any text: what is generated at once, from one thread or several, is what it is alone.
    """

    bundle: Contents
    provider: str
    """Where it runs."""
    precision: str
    graph: str
    """The file that decodes."""
    num_threads: int
    passed_over: tuple[str, ...] = ()
    """What ``auto`` tried first, and why it could not be; a provider this onnxruntime does not have is not tried. And
    the library of operators, where the graph runs without it."""
    decoder: Decoder
    """What runs."""
    draft: Draft | None = None
    """What proposes the tokens of a single text, and what became of that."""

    @property
    def config(self) -> AndreaConfig:
        """The model's shape."""
        return self.bundle.config

    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer: ``encode`` makes a prompt of text, ``stream`` text of tokens as they come.

        Raises: UsageError (the bundle has none), BundleError (damaged), BackendUnavailable (its package is missing).
        """
        return self.bundle.tokenizer()

    @property
    def name(self) -> str:
        """The decoder's name, for reports, and its draft's precision."""
        return self.decoder.name if self.draft is None else f"{self.decoder.name}, drafted in {self.draft.precision}"

    def generate(
        self, prompt: Sequence[int], *, max_new_tokens: int, sampling: Sampling | None = None
    ) -> Iterator[int]:
        """Yields new tokens as they come: ``max_new_tokens`` of them, or fewer where a stop token ends the text.

        Prompt and new tokens must fit the context; a request that does not is refused before anything runs. The cache
        is the iterator's: it is begun with the first token, and released after the last or with the iterator.
        Raises: UsageError (at once, or once the model is closed), RunError, BackendUnavailable (out of memory).
        """
        steps = self.generate_batch([prompt], max_new_tokens=max_new_tokens, sampling=sampling)
        return (tokens[0] for tokens in steps if tokens[0] is not None)

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, sampling: Sampling | None = None
    ) -> Iterator[list[int | None]]:
        """Yields a list a step, one token a row; None for a row that has ended. A row gives what it gives alone.

        Raises: as ``generate``.
        """
        rows, number = _rows(prompts), whole_number("max_new_tokens", max_new_tokens)
        for row in rows:
            check_generation(self.config, row, number)
        checked = checked_sampling(Sampling() if sampling is None else sampling, self.config.vocab_size)
        return self._steps(rows, number, checked)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> LogitsBV:
        """The logits ``[B, V]`` after each prompt, which may fill the context. Raises: as ``generate``."""
        rows = _rows(prompts)
        for row in rows:
            check_prompt(self.config, row)
        with closing(self._begin(rows, 0)) as generation:
            logits_BV: LogitsBV = generation.logits_BV.copy()
        return logits_BV

    def close(self) -> None:
        """Releases what the model and its texts hold; once is enough."""
        self.decoder.close()
        if self.draft is not None:
            self.draft.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _steps(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling
    ) -> Iterator[list[int | None]]:
        samplers = [Sampler(sampling) for _ in prompts]
        if self.draft is not None and len(prompts) == 1:  # the rows of a batch share their steps, which is faster still
            for token in self.draft.tokens(prompts[0], max_new_tokens, samplers[0]):
                yield [token]
            return
        ended = [False] * len(prompts)
        fed = [0] * len(prompts)
        with closing(self._begin(prompts, max_new_tokens)) as generation:
            for number in range(max_new_tokens):
                if number > 0:
                    generation.step(fed)
                tokens: list[int | None] = []
                for row, sampler in enumerate(samplers):
                    if not ended[row]:
                        fed[row] = sampler.pick(generation.logits_BV[row], number)
                        ended[row] = sampler.ends(fed[row])
                    tokens.append(None if ended[row] else fed[row])
                if all(ended):
                    return
                yield tokens

    def _begin(self, prompts: Sequence[Sequence[int]], num_new: int) -> Generation:
        return self.decoder.begin(prompts, max(len(prompt) for prompt in prompts) + num_new)


def _rows(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The prompts as plain integers. Raises: UsageError for an empty list, and for anything but lists of token ids."""
    try:
        rows = [token_ids(prompt) for prompt in prompts]
    except TypeError:
        raise UsageError(f"the prompts are {prompts!r}, expected a list of them") from None
    if not rows:
        raise UsageError("no prompt was given, expected at least one")
    return rows
