"""An engine's optimization profile: the shapes of every graph input, and whether a model can have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from andrea_export.core.errors import UsageError
from andrea_export.core.names import graph_inputs
from andrea_export.core.precision import Precision
from andrea_export.core.profile import Profile
from andrea_model.config import AndreaConfig


def profile_shapes(config: AndreaConfig, precision: Precision, profile: Profile) -> Mapping[str, list[list[int]]]:
    """Minimum, optimum and maximum shape of every graph input. Raises UsageError for a profile the model cannot have.

    The mask's length is past + sequence at each of the three, past ``n_ctx`` too: the builder checks that the shapes
    of one point agree. No run gets there, as there are no positions beyond ``n_ctx``.
    """
    check_profile(config, profile)
    sequence, past = profile.sequence, profile.past

    def shape(dims: Sequence[int | str], point: str) -> list[int]:
        sizes = {
            "batch": getattr(profile.batch, point),
            "sequence": getattr(sequence, point),
            "past": getattr(past, point),
            "total": getattr(sequence, point) + getattr(past, point),
        }
        return [sizes[dim] if isinstance(dim, str) else dim for dim in dims]

    return {
        spec.name: [shape(spec.dims, point) for point in ("min", "opt", "max")]
        for spec in graph_inputs(config, precision.cache_dtype)
    }


def check_profile(config: AndreaConfig, profile: Profile) -> None:
    """Raises UsageError for a profile that a model of this context cannot have, every reason named."""
    sequence, past = profile.sequence, profile.past
    problems = []
    if sequence.max > config.n_ctx:
        problems.append(f"sequence.max is {sequence.max}")
    if past.max >= config.n_ctx:
        problems.append(f"past.max is {past.max}, which leaves no place for a new token")
    for point in ("min", "opt"):
        total = getattr(sequence, point) + getattr(past, point)
        if total > config.n_ctx:
            problems.append(f"sequence.{point} + past.{point} is {total}")
    if problems:
        raise UsageError(
            f"the profile does not fit a context of {config.n_ctx} tokens: {'; '.join(problems)}",
            hint="change the recipe's profile",
        )
