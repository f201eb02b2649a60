"""The recipe: defaults, what is refused, and that what is stored says everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from andrea_export.core.errors import UsageError
from andrea_export.targets.recipe import Recipe, recipe_as_mapping, recipe_from_mapping, recipe_from_toml


def test_the_empty_recipe_is_the_default() -> None:
    assert recipe_from_mapping({}, where="test") == Recipe()


def test_the_default_profile_is_the_models_context() -> None:
    profile = Recipe().profile
    assert (profile.batch.min, profile.batch.opt, profile.batch.max) == (1, 1, 8)
    assert (profile.sequence.min, profile.sequence.opt, profile.sequence.max) == (1, 128, 1024)
    assert (profile.past.min, profile.past.opt, profile.past.max) == (0, 128, 1023)


def test_fp32_means_fp32() -> None:
    assert Recipe().tf32 is False


def test_a_stored_recipe_is_the_recipe() -> None:
    recipe = recipe_from_mapping(
        {
            "preset": "andrea-tiny",
            "targets": ["onnx", "tensorrt-rtx"],
            "precisions": ["fp16"],
            "native_twin": True,
            "profile": {"batch": {"min": 1, "opt": 2, "max": 4}},
        },
        where="test",
    )
    stored = recipe_as_mapping(recipe)
    assert set(stored) == set(Recipe.__dataclass_fields__)
    assert recipe_from_mapping(stored, where="stored") == recipe


def test_a_file_is_read_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('preset = "andrea-tiny"\n[profile.batch]\nmin = 1\nopt = 1\nmax = 2\n')
    keys = recipe_from_toml(path)
    assert recipe_from_mapping(keys, where="file").profile.batch.max == 2


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"colour": 1}, "unknown key 'colour'"),
        ({"profile": {"depth": 1}}, "unknown key 'profile.depth'"),
        ({"targets": []}, "targets is empty"),
        ({"precisions": ["fp32", "fp32"]}, "precisions names one value twice"),
        ({"targets": ["coreml"]}, "targets.*'coreml'"),
        ({"precisions": ["fp8"]}, "precisions.*'fp8'"),
        ({"seed": -1}, "seed: .*-1"),
        ({"seed": "many"}, "seed: .*'many'"),
        ({"seed": "0"}, "seed: .*valid integer, got '0'"),
        ({"tf32": 1}, "tf32: .*valid boolean, got 1"),
        ({"target": ["onnx"]}, r"unknown key 'target', did you mean 'targets'\?"),
        ({"ort_cpu": {"int8_keeps": []}}, r"unknown key 'ort_cpu.int8_keeps', did you mean 'int8_keep'\?"),
        ({"ort_cpu": {"int8_keep": "blocks.0"}}, "ort_cpu.int8_keep: .*array, got 'blocks.0'"),
        ({"ort_cpu": 3}, "ort_cpu: .*an object, got 3"),
        (
            {"targets": ["onnx"], "precisions": ["int8"]},
            "no target of this recipe comes in int8: int8 and int4 are for --target ort-cpu",
        ),
        ({"tf32": "perhaps"}, "tf32: .*'perhaps'"),
        ({"engine_timeout_s": 0}, "engine_timeout_s: .*0"),
        ({"profile": {"past": {"min": 3, "opt": 2, "max": 1}}}, "min 3, opt 2, max 1 are not in rising order"),
        ({"profile": {"batch": {"min": 0, "opt": 1, "max": 1}}}, "batch.min is 0"),
        ({"profile": {"batch": {"min": 1}}}, "profile.batch.opt: .*required"),
    ],
)
def test_a_wrong_recipe_is_refused_by_key(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=f"^here: .*{text}") as caught:
        recipe_from_mapping(values, where="here")
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("preset = 1979-05-27", "1979-05-27 is a date, which no key of a recipe takes"),
        ("[ort_cpu]\nint8_keep = [07:32:00]", "07:32:00 is a time, which no key of a recipe takes"),
        ("seed = 0x" + "f" * 5000, "4300 digits"),
        ("a." * 3000 + "a = 1", "recursion"),
        ("preset = [" + "'x'," * 5000 + "]", r"preset: .*, got \['x', .*\.\.\.\]$"),
    ],
)
def test_what_toml_has_and_a_recipe_does_not(tmp_path: Path, body: str, text: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(body)
    with pytest.raises(UsageError, match=text) as caught:
        recipe_from_mapping(recipe_from_toml(path), where="here")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_the_hint_names_the_keys_of_the_table_that_is_wrong() -> None:
    with pytest.raises(UsageError) as caught:
        recipe_from_mapping({"ort_cpu": {"colour": 1}}, where="here")
    assert caught.value.hint is not None and caught.value.hint.startswith("keys of [ort_cpu]: int8_keep, int4_block")
    assert "{" not in str(caught.value)


def test_every_problem_is_in_one_error() -> None:
    with pytest.raises(UsageError) as caught:
        recipe_from_mapping({"colour": 1, "seed": -1, "precisions": []}, where="here")
    assert "'colour'" in str(caught.value)
    assert "seed" in str(caught.value)


@pytest.mark.parametrize("body", [b"preset = ", b"\xff\xfe", b"a = 1\na = 2\n", b"seed = " + b"9" * 5000])
def test_a_file_that_is_no_toml(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(body)
    with pytest.raises(UsageError, match="is not TOML"):
        recipe_from_toml(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        recipe_from_toml(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match="Is a directory"):
        recipe_from_toml(tmp_path)
