"""The error tree. Every failure a user can meet is one of these; anything else is a bug and keeps its traceback.

    AndreaError                 exit 2
    ├── UsageError              exit 2   a wrong option, recipe key, token id, output path
    ├── CheckpointError         exit 2   a weights file that is missing, damaged or of another shape
    ├── ExportError             exit 2   the model cannot be turned into canonical ONNX
    ├── PassError               exit 2   a graph rewrite met a graph that breaks its contract
    ├── BundleError             exit 2   a bundle that is incomplete or does not match its manifest
    ├── PluginError             exit 2   a plugin library that cannot be built, or is not what the graph asks for
    ├── BuildError              exit 1   an engine build failed, or failed its proof
    ├── RunError                exit 2   a session was given inputs it cannot run
    ├── ValidationError         exit 1   a comparison could not be passed
    ├── ReportError             exit 2   a report file that is not a report, damaged, or of another schema
    ├── PolicyError             exit 2   a policy with a wrong key, or that names no layer
    ├── TraceError              exit 2   a recorded trace that is not one, damaged, or of another model
    ├── MismatchError           exit 2   two things that cannot be compared: other architecture, vocabulary or layers
    └── BackendUnavailable      exit 3   a package, driver or device that is not on this machine

An error says what is wrong, where, and what was expected against what was found; the way out is its ``hint``.
Several problems of one kind are collected and raised once.
"""

import re
from typing import ClassVar


class AndreaError(Exception):
    """Base of every error this package raises on purpose; ``str(error)`` is one line, ``error.hint`` the way out."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, without colours; its type's name where it says nothing."""
    return next(iter(_COLOURS.sub("", str(error)).strip().splitlines()), type(error).__name__)


class UsageError(AndreaError):
    """A wrong option, recipe key, token id or output path."""


class CheckpointError(AndreaError):
    """A weights file that is missing, damaged, or of another architecture."""


class ExportError(AndreaError):
    """The model cannot be turned into canonical ONNX."""


class PassError(AndreaError):
    """A graph rewrite was given a graph that breaks its contract, or left one that does."""


class BundleError(AndreaError):
    """A bundle that is incomplete, or whose files do not match its manifest."""


class PluginError(AndreaError):
    """A plugin library that cannot be built, or is not the one the graph asks for."""


class BuildError(AndreaError):
    """An engine build that failed, or whose proof failed."""

    exit_code = 1


class RunError(AndreaError):
    """Inputs a session cannot run."""


class ValidationError(AndreaError):
    """A comparison that did not hold."""

    exit_code = 1


class ReportError(AndreaError):
    """A report file that is not a report, damaged, or of a schema this version does not know."""


class PolicyError(AndreaError):
    """A policy with a wrong key or value, or with layers that the model does not have."""


class TraceError(AndreaError):
    """A recorded trace that is not one, damaged, of another version, or of another model."""


class MismatchError(AndreaError):
    """Two things that cannot be compared: another architecture, vocabulary or set of layers."""


class BackendUnavailable(AndreaError):
    """A package, driver or device that is not on this machine."""

    exit_code = 3
