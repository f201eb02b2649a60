"""The example CI jobs are valid for the servers they are for, and call commands and options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from andrea_export.cli.diff import write_reports
from andrea_export.judge.policy import Policy, policy_from_toml
from support.paths import ROOT
from support.synthetic_report import synthetic_report

EXAMPLES = ROOT / "docs" / "ci"
SCHEMAS = {"github-actions.yml": "vendor.github-workflows", "gitlab-ci.yml": "vendor.gitlab-ci"}


def commands(node: Any) -> Iterator[str]:
    """Every line of every script in a job file that calls the tool."""
    if isinstance(node, str):
        yield from (line for line in node.splitlines() if line.startswith("andrea-export "))
    elif isinstance(node, dict):
        for value in node.values():
            yield from commands(value)
    elif isinstance(node, list):
        for value in node:
            yield from commands(value)


def lint(file: Path, schema: str) -> subprocess.CompletedProcess[str]:
    # The schemas are shipped in the package: nothing is fetched.
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_valid(name: str) -> None:
    result = lint(EXAMPLES / name, SCHEMAS[name])
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_linter_sees_a_mistake(name: str, tmp_path: Path) -> None:
    broken = tmp_path / name
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    broken.write_text(text.replace("runs-on:", "runs_on:").replace("  script:", "  skript:"), encoding="utf-8")
    assert lint(broken, SCHEMAS[name]).returncode != 0


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_command_and_option_exists(name: str, andrea: Any) -> None:
    found = list(commands(yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))))
    assert {shlex.split(line)[1] for line in found} >= {"build", "diff", "record"}
    for line in found:
        _, verb, *words = shlex.split(line)
        text = andrea(verb, "--help").stdout
        offered = set(re.findall(r"--[a-z][a-z-]*", text))
        assert {word for word in words if word.startswith("--")} <= offered, line


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_reports_it_publishes_are_those_diff_writes(name: str, tmp_path: Path) -> None:
    write_reports(tmp_path, synthetic_report())
    written = {path.name for path in tmp_path.iterdir()}
    named = set(re.findall(r"accuracy/([a-z.]+)", (EXAMPLES / name).read_text(encoding="utf-8")))
    assert named and named <= written


def test_the_policy_they_name_is_one() -> None:
    policy, origin = policy_from_toml(EXAMPLES / "accuracy-policy.toml")
    assert policy == Policy() and origin["name"] == "accuracy-policy.toml"
