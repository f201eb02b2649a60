"""The table of precisions."""

from __future__ import annotations

from andrea_export.core.precision import HALF_MODULES, PRECISIONS, Precision
from reference_pages.markdown import page, table

_HEAD = (
    "precision",
    f"{' and '.join(f'`{name}`' for name in HALF_MODULES)} of a block",
    "everything else",
    "built by",
    "torch runs in it, to derive budgets",
)


def precisions() -> str:
    """The page of precisions: what computes in what, and what is built in them."""
    why = "[Precisions](../concepts/precisions.md) says why, and what is 8 or 4 bits in the last two."
    return page("Precisions", why, table(_HEAD, map(_row, PRECISIONS.values())))


def _row(row: Precision) -> tuple[str, ...]:
    built = [*(["engines"] if row.in_engines else []), *(["`ort-cpu`"] if row.in_ort_cpu else [])]
    return f"`{row.name}`", row.compute_dtype, row.rest_dtype, ", ".join(built), "yes" if row.has_budgets else "no"
