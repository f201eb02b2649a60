"""What decodes: a graph on a provider that takes prompts once, then one token a row at a time.

Owns the split between what all texts share (a decoder: its sessions) and what is a text's own (a generation: its
cache), and the errors of both. ``shared_cache.py`` and ``growing_cache.py`` are the decoders there are.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import BackendUnavailable, RunError, UsageError
from andrea_export.sessions.onnxruntime import is_out_of_memory, onnxruntime_errors
from andrea_export.sessions.onnxruntime.errors import on_one_line

LogitsBV = npt.NDArray[np.float32]


class Decoder(ABC):
    """Sessions, and nothing of any text: generations of several threads may share one.

    ``name``: how reports call it, ``onnxruntime-cpu (ort-cpu-int8)``.
    """

    passed_over: tuple[str, ...] = ()
    """What it would rather have run with, and why it does not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        # No lock guards it, for a forked child may find one held by a thread that it does not have.
        self._in_progress: weakref.WeakValueDictionary[int, Generation] = weakref.WeakValueDictionary()
        self._errors = onnxruntime_errors()

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int) -> Generation:
        """New texts, one prompt a row, as far as the logits after each. ``capacity``: the tokens a row may come to.

        Raises: UsageError (the decoder is closed), RunError, BackendUnavailable (out of memory).
        """
        try:
            generation = self._generation(len(prompts), capacity)
        except MemoryError as error:
            raise_run_error(self.name, error)
        self._in_progress[id(generation)] = generation
        try:
            if self.closed:  # by another thread, before it could know of this generation
                raise_closed(self)
            generation.fill(prompts)
        except BaseException:
            generation.close()
            raise
        return generation

    def run(self, session: Any, io: Any) -> None:
        """Runs what is bound. Raises: RunError, BackendUnavailable (out of memory)."""
        try:
            session.run_with_iobinding(io)
        except self._errors as error:
            raise_run_error(self.name, error)

    def close(self) -> None:
        """Releases the sessions, and what the generations in progress hold."""
        self.closed = True
        for reference in self._in_progress.valuerefs():
            if (generation := reference()) is not None:
                generation.close()
        self._release()

    @abstractmethod
    def _generation(self, num_rows: int, capacity: int) -> Generation:
        """A generation with nothing in its cache. Raises: UsageError (the decoder is closed), MemoryError."""

    @abstractmethod
    def _release(self) -> None:
        """Lets go of the sessions."""


class Generation(ABC):
    """Texts in progress, a row each, over a cache that is theirs alone. For one thread at a time."""

    logits_BV: LogitsBV
    """After each row's last token; overwritten by the next step."""

    @abstractmethod
    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Takes one prompt a row. Raises: RunError, BackendUnavailable (out of memory)."""

    @abstractmethod
    def step(self, tokens: Sequence[int]) -> LogitsBV:
        """One more token for every row; the logits after it.

        Raises: UsageError (the generation or its model is closed), RunError, BackendUnavailable (out of memory).
        """

    @abstractmethod
    def close(self) -> None:
        """Releases the cache; once is enough."""


class RewindableGeneration(Generation):
    """One text whose cache can go back to fewer tokens. ``num_filled``: how many tokens of each row are in it."""

    num_filled: list[int]

    @abstractmethod
    def append(self, tokens: Sequence[int]) -> LogitsBV:
        """Appends these tokens, a few, to the only row in one run; the logits ``[S, V]`` after each of them.

        They are overwritten by the next run of as many. Raises: as ``step``.
        """

    @abstractmethod
    def rewind(self, num_filled: int) -> None:
        """Forgets what the only row holds after its first ``num_filled`` tokens: what comes next is written over it."""


def raise_run_error(name: str, error: Exception) -> NoReturn:
    """Turns what onnxruntime or numpy raised while running into this project's error."""
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        raise BackendUnavailable(
            f"{name}: out of memory", hint="use a shorter prompt, fewer rows, or int8 or int4"
        ) from error
    raise RunError(f"{name}: {on_one_line(error)}") from error


def raise_closed(decoder: Decoder) -> NoReturn:
    """What a generation says that is asked for more after its end."""
    raise UsageError("the model is closed" if decoder.closed else "the generation is closed")
