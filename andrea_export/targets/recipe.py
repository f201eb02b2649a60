"""The recipe: the only configuration object. It is given in TOML or by options, and stored in what it made.

Owns the schema, its defaults and their reasons; builds nothing.
"""

from __future__ import annotations

import difflib
import json
import reprlib
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from pydantic import Field, TypeAdapter, ValidationError

from andrea_export.core.errors import UsageError, first_line
from andrea_export.core.precision import ENGINE_PRECISIONS, ORT_PRECISIONS, BuiltPrecision
from andrea_export.core.profile import Profile, ShapeRange
from andrea_export.core.strict import Strict
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.registry import REGISTRY
from andrea_export.weights.origin import config_with
from andrea_model.config import AndreaConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


if TYPE_CHECKING:
    TargetName = str
else:  # what a file may say, checked by whoever reads it
    TargetName = Literal[tuple(REGISTRY)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Strict):
    """What to build. Every key is optional."""

    preset: str | None = None
    """One of ``andrea_model.PRESETS``; left out: the checkpoint's own configuration, or andrea-120m."""
    model: AndreaConfig | None = None
    """The shape itself, under the names of ``AndreaConfig``, where no preset has it and the checkpoint does not say."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the untrained weights, where no checkpoint is given."""
    targets: tuple[TargetName, ...] | None = None
    """Left out: everything this machine can build."""
    precisions: tuple[BuiltPrecision, ...] = ("fp32",)
    """Each target takes those it knows: an engine fp32, fp16, bf16, ort-cpu int8, int4. model.onnx is fp32, and ort-cpu
    makes a graph in fp32 in any case: it has no weights of its own."""
    ort_cpu: OrtCpu = field(default_factory=OrtCpu)
    profile: Profile = field(default_factory=Profile)
    tf32: bool = False
    """Let fp32 engines round their matrix inputs to TF32. Off, so that fp32 means fp32."""
    native_twin: bool = False
    """Also build each engine without the plugin (``<target>-<precision>-native.plan``), for comparison."""
    cuda_architectures: tuple[str, ...] | None = None
    """GPUs the plugin is compiled for, as CMake names them; left out: those of ``plugins/architectures.json``."""
    engine_timeout_s: Annotated[int, Field(ge=1)] = 1800
    """An engine build that takes longer is stopped, and is an error."""

    def __post_init__(self) -> None:
        if self.preset is not None and self.model is not None:
            raise ValueError("preset and model both give the shape, expected one of them")
        for name in ("targets", "precisions", "cuda_architectures"):
            values = getattr(self, name)
            if values is not None and not values:
                raise ValueError(f"{name} is empty")
            if values is not None and len(set(values)) != len(values):
                raise ValueError(f"{name} names one value twice: {', '.join(values)}")
        strange = [name for name in self.precisions if not self._is_used(name)]
        if strange:
            raise ValueError(
                f"no target of this recipe comes in {', '.join(strange)}: "
                f"{_only(ORT_PRECISIONS)} are for --target ort-cpu, {_only(ENGINE_PRECISIONS)} for an engine's"
            )

    def precisions_of(self, target: str) -> tuple[BuiltPrecision, ...]:
        """The precisions a target is built in; none where the recipe does not name the target."""
        if target not in (self.targets or ()):
            return ()
        row = REGISTRY[target]
        return tuple(name for name in row.precisions if name in (*self.precisions, *row.always))

    def resolved(self, *, preset: str | None, targets: tuple[TargetName, ...]) -> Recipe:
        """The recipe of what is built: these targets, in the precisions that one of them takes."""
        taken = replace(self, targets=targets, precisions=("fp32",))
        used = tuple(name for name in self.precisions if taken._is_used(name))
        return replace(taken, preset=preset, precisions=used or ("fp32",))

    def _is_used(self, precision: BuiltPrecision) -> bool:
        """Whether a target takes this precision. With targets left to the machine, those of engines may be unused."""
        targets = REGISTRY if self.targets is None else self.targets
        return precision == "fp32" or any(precision in REGISTRY[name].precisions for name in targets)


_RECIPE = TypeAdapter(Recipe)


def recipe_from_mapping(values: dict[str, Any], *, where: str) -> Recipe:
    """The recipe these keys describe. Raises UsageError naming every wrong key and value at once."""
    if values.get("model") is not None:
        try:
            config_with(values["model"])  # which names everything that is wrong with it
        except (ValueError, TypeError) as error:
            raise UsageError(f"{where}: model: {first_line(error)}", hint="see docs/reference/recipe.md") from None
    try:
        # As JSON, where a number in quotes is not a number, and a tuple is an array, as TOML calls it.
        text = json.dumps(values, default=_refused)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{where}: {first_line(error)}", hint="see docs/reference/recipe.md for its keys") from None
    try:
        return _RECIPE.validate_json(text, strict=True)
    except ValidationError as error:
        problems = error.errors()
        table = ".".join(str(part) for part in problems[0]["loc"][:-1])
        known = _keys(table)
        keys = f"keys of [{table}]: {', '.join(known)}" if table and known else f"keys: {', '.join(_keys(''))}"
        raise UsageError(f"{where}: {'; '.join(map(_problem, problems))}", hint=keys) from None


def recipe_from_toml(path: Path) -> dict[str, Any]:
    """The keys a recipe file holds, not yet validated. Raises UsageError if it is missing or not TOML."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise UsageError(f"recipe {path} is not a file", hint="name a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"recipe {path}: {error.strerror or error}", hint="name a TOML file") from None
    except (ValueError, RecursionError) as error:  # TOML, UTF-8, or a number too long to read
        raise UsageError(
            f"recipe {path} is not TOML: {error}", hint="see docs/guides/building.md for an example"
        ) from None


def recipe_as_mapping(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain JSON values, every key present."""
    mapping: dict[str, Any] = _RECIPE.dump_python(recipe, mode="json")
    return mapping


def _only(precisions: tuple[str, ...]) -> str:
    """Those that some targets take and others do not, in words."""
    return " and ".join(name for name in precisions if name != "fp32")


def _keys(table: str) -> tuple[str, ...]:
    """The keys of a table by its dotted name ("" for the recipe itself); empty where a recipe has no such table."""
    ranges = {f"profile.{name}": ShapeRange for name in Profile.__dataclass_fields__}
    kind = {"": Recipe, "model": AndreaConfig, "ort_cpu": OrtCpu, "profile": Profile, **ranges}.get(table)
    return () if kind is None else tuple(entry.name for entry in fields(kind))


def _problem(entry: Any) -> str:
    *table, last = (str(part) for part in entry["loc"] or ("",))
    key = ".".join((*table, last))
    if entry["type"] == "unexpected_keyword_argument":
        near = difflib.get_close_matches(last, _keys(".".join(table)), n=1)
        return f"unknown key '{key}'" + (f", did you mean '{near[0]}'?" if near else "")
    message = entry["msg"].removeprefix("Value error, ")
    said = f"{key}: {message[0].lower() + message[1:]}" if key else message
    return said if isinstance(entry["input"], dict) else f"{said}, got {reprlib.repr(entry['input'])}"


def _refused(value: object) -> NoReturn:
    raise TypeError(f"{value} is a {type(value).__name__}, which no key of a recipe takes")
