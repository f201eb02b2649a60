"""Where weights came from, and the presets that are shorthand for a shape. Reads no file."""

from dataclasses import MISSING, dataclass, fields

from andrea_export.core.errors import UsageError
from andrea_model.config import PRESETS, AndreaConfig

DEFAULT_PRESET = "andrea-120m"
UNTRAINED = "untrained weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrigin:
    """Where weights came from: a checkpoint's name and sha256, or the seed of an untrained initialisation."""

    preset: str | None
    checkpoint: str | None = None
    checkpoint_sha256: str | None = None
    seed: int | None = None
    untrained: bool = False
    """The checkpoint itself says that its weights are an initialisation, saved."""
    guess: str | None = None
    """What was assumed of the checkpoint and nothing proves, in words."""

    @property
    def trained(self) -> bool:
        """Whether the weights came from a checkpoint that does not say they are untrained."""
        return self.checkpoint_sha256 is not None and not self.untrained

    def __str__(self) -> str:
        if self.checkpoint_sha256 is None:
            return f"{UNTRAINED} (GPT-2 initialisation, seed {self.seed})"
        file = f"{self.checkpoint} (sha256 {str(self.checkpoint_sha256)[:12]})"
        if self.guess is not None:
            file += f", A GUESS: {self.guess}"
        return f"{UNTRAINED}, saved in {file}" if self.untrained else file


def config_from_preset(preset: str) -> AndreaConfig:
    """The shape of a preset. Raises UsageError naming the presets there are."""
    try:
        return PRESETS[preset]
    except KeyError:
        raise UsageError(f"unknown preset '{preset}'", hint=f"presets: {', '.join(PRESETS)}") from None


def config_with(values: object) -> AndreaConfig:
    """The shape that these keys, which are ``AndreaConfig``'s, state. Raises: ValueError naming what is wrong."""
    known = [entry.name for entry in fields(AndreaConfig)]
    needed = [entry.name for entry in fields(AndreaConfig) if entry.default is MISSING]
    if not isinstance(values, dict):
        raise ValueError(f"a model's shape is a table of {', '.join(known)}")
    problems = [f"unknown key '{name}'" for name in values if name not in known]
    problems += [f"it has no {name}" for name in needed if name not in values]
    if problems:
        raise ValueError(f"{'; '.join(problems)} (keys: {', '.join(known)})")
    return AndreaConfig(**values)


def preset_of(config: AndreaConfig | None) -> str | None:
    """The preset that has this shape, if there is one."""
    return next((name for name, preset in PRESETS.items() if preset == config), None)
