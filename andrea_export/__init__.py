"""andrea-export: takes ANDREA from its PyTorch reference to something that ships, and proves that it is the same model.

Importing this package imports no backend; each is imported where it is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea_export.runtime import Model, Sampling, load

__version__ = "0.1.0"
__all__ = ["Model", "Sampling", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """The runtime's names, imported when they are first asked for."""
    if name in ("Model", "Sampling", "load"):
        from andrea_export import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
