"""Drafted text: a cheaper precision proposes tokens, the asked one verifies them all in one run. The text is the same.

Owns a drafted text: what is proposed and accepted, how far both caches are filled, and where a run of several tokens
must not decide. ``pace.py`` owns how many are proposed, ``sampling.py`` what is chosen from logits.

The method is speculative decoding (Leviathan, Kalman, Matias, https://arxiv.org/abs/2211.17192). What logits choose is
a function of them, the seed and the place in the text (``Sampler``), and not of what was proposed. So text with a draft
is the text without, greedy or drawn, whatever is proposed and however much of it (Daliri, Musco, Suresh,
https://arxiv.org/abs/2408.07978). Accepting by the ratio of two probabilities, as the first paper does, takes one token
more in a hundred, and what a seed draws would depend on how long the runs took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from andrea_export.runtime.decoder import Decoder, RewindableGeneration, raise_closed
from andrea_export.runtime.pace import Pace
from andrea_export.runtime.sampling import Logits, Sampler

_FEW_INEXACT = 16
"""So few tokens are worth a step each once the draft is off: no tie later on costs steps for all there are by then."""
_MOST_READ = 16
"""Tokens read for each that may be saved half a step: reading 32 takes a draft about a plain step."""
_MOST_BEHIND = 8
"""Tokens that a decoding graph reads sooner than one for prompts."""


@dataclass(slots=True, kw_only=True)
class DraftRecord:
    """What became of the draft in one text so far."""

    num_proposed: int = 0
    num_accepted: int = 0
    """Proposed tokens that are in the text."""
    num_verified: int = 0
    """Runs that verified proposed tokens; each gave one token more than it accepted."""
    num_plain: int = 0
    """Tokens that took a step of their own."""
    num_replayed: int = 0
    """Steps taken once more, because a run of several tokens was too near a tie to decide."""
    off: str | None = None
    """Why the draft was switched off; None while it is in use."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A cheaper decoder beside a model's own: what all drafted texts share."""

    precision: str
    """The cheaper one."""
    proposing: Decoder
    verifying: Decoder
    """Both with generations that can be rewound."""
    off_by: float
    """No logit of a run of several tokens is further than this from that of single steps."""
    clock: Callable[[], float] = time.perf_counter
    record: DraftRecord | None = None
    """Of the text begun last."""

    def tokens(self, prompt: Sequence[int], max_new_tokens: int, sampler: Sampler) -> Iterator[int]:
        """Yields the new tokens of one text, its stop token not included.

        Raises: UsageError (the model is closed), RunError, BackendUnavailable (out of memory).
        """
        self.record = record = DraftRecord()
        with closing(_Text(self, prompt, len(prompt) + max_new_tokens, sampler, record)) as text:
            yield from text.tokens()

    def close(self) -> None:
        """Releases the cheaper decoder; once is enough."""
        self.proposing.close()


class _Text:
    """One text in progress. Both caches hold its beginning: the verifier's all but its last token.

    The verifier's cache is *exact* as far as it is what single steps would have made it, bit for bit. Attention adds up
    in another order for several tokens at once: what such a run appends is off in the last bits, and so is all after.
    """

    def __init__(self, draft: Draft, prompt: Sequence[int], end: int, sampler: Sampler, record: DraftRecord) -> None:
        self._draft, self._sampler, self._record, self._clock = draft, sampler, record, draft.clock
        self._pace = Pace()
        self._tokens, self._num_prompt, self._end = list(prompt), len(prompt), end
        self._verifying = _begun(draft.verifying, self._tokens, end)
        self._proposing: RewindableGeneration | None = None
        self._num_exact = len(prompt)
        self._is_short = len(prompt) > _MOST_READ * (end - len(prompt))

    def tokens(self) -> Iterator[int]:
        """The new tokens; a round gives one or more."""
        self._tokens.append(self._decided(self._verifying.logits_BV[0]))
        for place in range(self._num_prompt, self._end):
            if place == len(self._tokens):
                self._round()
            if self._draft.verifying.closed:
                raise_closed(self._draft.verifying)
            if self._sampler.ends(self._tokens[place]):
                return
            yield self._tokens[place]

    def close(self) -> None:
        """Gives both caches back."""
        self._verifying.close()
        if self._proposing is not None:
            self._proposing.close()

    def _round(self) -> None:
        """One token or more."""
        number = min(self._num_to_propose(), self._end - len(self._tokens) - 1)
        if number < 1:
            begin = self._clock()
            self._step()
            self._pace.took_step(self._clock() - begin)
            return
        proposing = self._caught_up()
        begin = self._clock()
        proposed = self._proposed(proposing, number)
        self._verify(proposed)
        proposing.rewind(min(proposing.num_filled[0], len(self._tokens) - 1))
        self._pace.took_run(len(proposed), self._clock() - begin)

    def _num_to_propose(self) -> int:
        """0: a plain step does, or has to be measured. The record says why the draft is off, where it is."""
        if self._is_short:
            self._record.off = "the text is too short to be worth reading its prompt twice"
            return 0
        number = self._pace.num_to_propose()
        self._record.off = self._pace.off
        return number

    def _caught_up(self) -> RewindableGeneration:
        """The draft's generation, once it has read all but a few of the tokens."""
        if self._proposing is None:
            self._proposing = _begun(self._draft.proposing, self._tokens, self._end)
        behind = self._tokens[self._proposing.num_filled[0] :]
        if len(behind) > _MOST_BEHIND:
            self._proposing.fill([behind])
        return self._proposing

    def _step(self) -> None:
        """One token more by a single step; where the draft is off and little was drafted, by those single steps too."""
        num_inexact = len(self._tokens) - 1 - self._num_exact
        if num_inexact == 0 or (self._record.off is not None and num_inexact <= _FEW_INEXACT):
            self._replay()
        else:
            self._verifying.step(self._tokens[-1:])
        self._record.num_plain += 1
        self._tokens.append(self._decided(self._verifying.logits_BV[0]))

    def _proposed(self, proposing: RewindableGeneration, number: int) -> list[int]:
        """Tokens that may follow; none after one that would end the text."""
        place, proposed = len(self._tokens) - self._num_prompt, list[int]()
        behind = self._tokens[proposing.num_filled[0] :]
        logits_V = proposing.append(behind)[-1] if behind else proposing.logits_BV[0]
        while True:
            proposed.append(self._sampler.pick(logits_V, place + len(proposed)))
            if len(proposed) == number or self._sampler.ends(proposed[-1]):
                return proposed
            logits_V = proposing.step(proposed[-1:])[0]

    def _verify(self, proposed: list[int]) -> None:
        """Appends the tokens that single steps would have given, as far as the proposed ones are those, and one."""
        self._record.num_proposed += len(proposed)
        self._record.num_verified += 1
        logits_SV = self._verifying.append([self._tokens[-1], *proposed])
        for number, logits_V in enumerate(logits_SV):
            self._tokens.append(self._decided(logits_V))
            if number == len(proposed):
                break
            accepted = self._tokens[-1] == proposed[number]
            self._pace.judged(accepted)
            self._record.num_accepted += accepted
            replayed = self._verifying.num_filled[0] < len(self._tokens)
            if not accepted or replayed or self._sampler.ends(self._tokens[-1]):
                break
        self._verifying.rewind(len(self._tokens) - 1)

    def _decided(self, logits_V: Logits) -> int:
        """The token that single steps give after the text so far, of which these logits are."""
        place = len(self._tokens) - self._num_prompt
        if self._num_exact == len(self._tokens):
            return self._sampler.pick(logits_V, place)
        token = self._sampler.surely(logits_V, place, self._draft.off_by)
        if token is None:
            self._replay()
            token = self._sampler.pick(self._verifying.logits_BV[0], place)
        return token

    def _replay(self) -> None:
        """Takes the single steps that make the verifier's cache, and its logits after the text so far, exact."""
        self._record.num_replayed += self._verifying.num_filled[0] - self._num_exact
        self._verifying.rewind(self._num_exact)
        for token in self._tokens[self._num_exact :]:
            self._verifying.step([token])
        self._num_exact = len(self._tokens)


def _begun(decoder: Decoder, tokens: Sequence[int], capacity: int) -> RewindableGeneration:
    generation = decoder.begin([tokens], capacity)
    assert isinstance(generation, RewindableGeneration)
    return generation
