"""What is read from files as strictly as it is written: a key that is not a dataclass's own is an error."""

from typing import ClassVar

from pydantic import ConfigDict


class Strict:
    """Base of a dataclass for which pydantic refuses unknown keys."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
