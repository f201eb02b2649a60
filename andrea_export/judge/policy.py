"""The policy: what is allowed. Read from TOML, validated at once, stored in the report it judged.

Owns the keys, their defaults and reasons, and which rule applies where; judges nothing itself.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from andrea_export.core.errors import PolicyError
from andrea_export.judge.budget import K_REASON, K
from andrea_export.report.metrics import METRICS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA: Literal["andrea-export/policy/1"] = "andrea-export/policy/1"

ErrorKind = Literal["accumulated", "local"]
DerivedMetric = Literal["max_abs", "mean_abs", "relative_l2"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Reason = Annotated[str, Field(min_length=1)]
Globs = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
Limits = Mapping[str, Annotated[float, Field(allow_inf_nan=False)]]

_STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)

_ABOUT_LANGUAGE = tuple(METRICS)[tuple(METRICS).index("num_values") + 1 :]
_ABOUT_TENSORS = tuple(name for name in METRICS if name not in _ABOUT_LANGUAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRule:
    """What is different for some layers. Of several rules that name a layer, the later ones win, key by key."""

    __pydantic_config__ = _STRICT

    layers: Globs
    """Layers, by module path; ``*`` stands for any characters. Each glob must name at least one layer."""
    reason: Reason
    """Why these layers are different. It is stated in the report."""
    candidates: Globs = ("*",)
    """Candidates the rule is for, by name."""
    errors: tuple[ErrorKind, ...] = ("accumulated", "local")
    """Which of the two errors the rule is for."""
    k: Positive | None = None
    """Replaces the policy's k."""
    limits: Limits = field(default_factory=dict)
    """Metric = limit, absolute: ``max_abs = 1e-3``, ``cosine = 0.9999``. Each replaces that metric's derived budget."""
    missing: Literal["fail", "not-measured", "pass"] | None = None
    """Replaces the policy's ``missing``."""

    def __post_init__(self) -> None:
        _check_metrics(self.limits, _ABOUT_TENSORS)

    def is_for(self, layer: str, candidate: str) -> bool:
        """Whether the rule names this layer of this candidate."""
        return _matches(layer, self.layers) and _matches(candidate, self.candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelRule:
    """What is different for some cases of the language model. Of several that name a case, the later ones win."""

    __pydantic_config__ = _STRICT

    cases: Globs
    """Cases: ``context 128``, ``left-padded batch``, ``decode with cache``, ``greedy``; ``*`` stands for anything."""
    reason: Reason
    """Why. It is stated in the report."""
    candidates: Globs = ("*",)
    """Candidates the rule is for, by name."""
    derived: bool = True
    """false: no budget is derived for these cases; the limits below are all there is."""
    k: Positive | None = None
    """Replaces the policy's k."""
    limits: Limits = field(default_factory=dict)
    """Metric = limit: ``top1_agreement = 0.99``, ``kl_mean = 1e-3``, ``perplexity_difference = 0.01``."""

    def __post_init__(self) -> None:
        _check_metrics(self.limits, ("max_abs", *_ABOUT_LANGUAGE))

    def is_for(self, case: str, candidate: str) -> bool:
        """Whether the rule names this case of this candidate."""
        return _matches(case, self.cases) and _matches(candidate, self.candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratchet:
    """Against ``--baseline``: no metric may worsen by more than this."""

    __pydantic_config__ = _STRICT

    max_worsening: Share = 0.0
    """The share by which an error may grow: 0.1 allows 10 %. Of a metric whose best is 1 (cosine, agreement) it is the
    distance from 1 that counts."""
    ignore_below: Share = 0.0
    """A figure below this share of its own budget never fails: 0.25 ignores what is under a quarter of its budget."""
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "max_abs",
        "relative_l2",
        "kl_mean",
        "kl_max",
        "perplexity_difference",
        "top1_agreement",
        "top5_overlap",
        "greedy_prefix",
    )
    """The metrics that are held."""

    def __post_init__(self) -> None:
        _check_metrics(self.metrics, tuple(name for name, metric in METRICS.items() if metric.better != "neither"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is allowed. Every key is optional but ``schema``."""

    __pydantic_config__ = _STRICT

    schema: Literal["andrea-export/policy/1"] = SCHEMA
    """The version of these keys."""
    k: Positive = K
    """A budget is k × the error torch itself makes in the candidate's precision."""
    k_reason: Reason = K_REASON
    """Why this k. Required where k is another than the default."""
    metrics: tuple[DerivedMetric, ...] = ("max_abs", "relative_l2")
    """The metrics that have a derived budget."""
    errors: tuple[ErrorKind, ...] = ("accumulated", "local")
    """The errors that are judged; the other is measured and shown, and only NaN and Inf fail it."""
    missing: Literal["fail", "not-measured", "pass"] = "fail"
    """A layer that the candidate does not have, or not in this shape (a wrong shape always fails)."""
    not_measured: Literal["fail", "pass"] = "fail"
    """A candidate, or a case of the language model, that could not be measured."""
    local_not_measured: Literal["fail", "pass"] = "pass"
    """A local error that could not be taken: an engine's layers are fused and cannot be fed. Its accumulated errors are
    judged all the same."""
    layer: tuple[LayerRule, ...] = ()
    """``[[layer]]``: rules for some layers."""
    language_model: tuple[LanguageModelRule, ...] = ()
    """``[[language_model]]``: rules for some cases of the language model."""
    ratchet: Ratchet = field(default_factory=Ratchet)
    """``[ratchet]``: what counts as worse than the baseline."""

    def __post_init__(self) -> None:
        if self.k != K and self.k_reason == K_REASON:
            raise ValueError(f"k is {self.k:g} instead of {K:g}, so k_reason must say why")

    def budget(self, layer: str, candidate: str, error: ErrorKind, basis: Mapping[str, float]) -> dict[str, float]:
        """Metric → limit for one error of one layer. A metric without a basis has only what limits say."""
        k, limits = self.k, dict[str, float]()
        for rule in self.layer:
            if error in rule.errors and rule.is_for(layer, candidate):
                k = rule.k or k
                limits.update(rule.limits)
        judged = self.metrics if error in self.errors else ()
        derived: dict[str, float] = {name: k * basis[name] for name in judged if name in basis}
        return {**derived, **limits}

    def missing_layer(self, layer: str, candidate: str) -> Literal["fail", "not-measured", "pass"]:
        """What a layer counts as that the candidate does not have."""
        verdict = self.missing
        for rule in self.layer:
            if rule.missing is not None and rule.is_for(layer, candidate):
                verdict = rule.missing
        return verdict

    def language_model_rules(self, case: str, candidate: str) -> tuple[float, bool, dict[str, float]]:
        """(k, whether budgets are derived, limits) for one case."""
        k, derived, limits = self.k, True, dict[str, float]()
        for rule in self.language_model:
            if rule.is_for(case, candidate):
                k, derived = rule.k or k, rule.derived
                limits.update(rule.limits)
        return k, derived, limits

    def check_names(self, layers: Iterable[str], cases: Iterable[str]) -> None:
        """Raises PolicyError naming every glob that no layer (or no case of the language model) matches."""
        layers, cases = tuple(layers), tuple(cases)
        problems = [
            f"layer rule {number}: '{glob}' names no layer"
            for number, rule in enumerate(self.layer, start=1)
            for glob in rule.layers
            if not any(fnmatchcase(layer, glob) for layer in layers)
        ]
        if cases:  # where the language model was not judged there is nothing to name
            problems += [
                f"language_model rule {number}: '{glob}' names no case"
                for number, rule in enumerate(self.language_model, start=1)
                for glob in rule.cases
                if not any(fnmatchcase(case, glob) for case in cases)
            ]
        if problems:
            raise PolicyError(
                f"the policy does not fit this model: {'; '.join(problems)}",
                hint=f"layers are named like {layers[len(layers) // 2]}; see layer_order in a report",
            )


_POLICY = TypeAdapter(Policy)


def policy_from_toml(file: Path) -> tuple[Policy, dict[str, str]]:
    """The policy in a file, and what a report says of where it came from: its name and sha256.

    Raises: PolicyError naming every wrong key and value at once.
    """
    try:
        content = file.read_bytes()
        values = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise PolicyError(f"policy {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise PolicyError(f"policy {file} is not TOML: {error}") from None
    schema = values.get("schema")
    if schema != SCHEMA:
        raise PolicyError(
            f"policy {file}: schema is {schema!r}, expected {SCHEMA!r}", hint=f'its first line is schema = "{SCHEMA}"'
        )
    try:
        policy = _POLICY.validate_python(values)
    except ValidationError as error:
        problems = "; ".join(_problem(entry) for entry in error.errors())
        raise PolicyError(
            f"policy {file}: {problems}", hint=f"keys: {', '.join(Policy.__dataclass_fields__)}"
        ) from None
    return policy, {"name": file.name, "sha256": hashlib.sha256(content).hexdigest()}


def policy_as_mapping(policy: Policy, origin: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The policy as plain JSON values, every key present, led by where it came from."""
    mapping: dict[str, Any] = _POLICY.dump_python(policy, mode="json")
    return {**(origin or {"name": "default"}), **mapping}


def policy_from_mapping(mapping: Mapping[str, Any]) -> Policy:
    """The policy stored in a report. Raises PolicyError if this version does not know its keys."""
    try:
        return _POLICY.validate_python({key: value for key, value in mapping.items() if key not in ("name", "sha256")})
    except ValidationError as error:
        raise PolicyError(f"the report's policy: {_problem(error.errors()[0])}") from None


def policy_json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a policy; shipped as ``schemas/policy-1.json``."""
    schema = _POLICY.json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **schema,
        "required": ["schema"],
    }


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _check_metrics(given: Iterable[str], known: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"unknown metric {', '.join(unknown)}; there are {', '.join(known)}")


def _problem(entry: Any) -> str:
    key = ".".join(str(part + 1 if isinstance(part, int) else part) for part in entry["loc"]) or "policy"
    if entry["type"] == "unexpected_keyword_argument":
        return f"unknown key '{key}'"
    if entry["type"] in ("missing", "missing_keyword_only_argument"):
        return f"{key} is missing"
    message = entry["msg"].removeprefix("Value error, ")
    shown = "" if entry["type"] == "value_error" else f", got {entry['input']!r}"
    return f"{key}: {message[0].lower() + message[1:]}{shown}"
