"""The built wheel: what is in it, and that it works where nothing but typer is installed beside it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from andrea_export import __version__
from support.commands import COMMANDS
from support.paths import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_top_level_names(wheel: Path) -> None:
    top = {name.split("/")[0] for name in names(wheel)}
    assert top == {"andrea_export", "andrea_model", f"andrea_export-{__version__}.dist-info"}


def test_type_information_is_shipped(wheel: Path) -> None:
    assert {"andrea_export/py.typed", "andrea_model/py.typed"} <= set(names(wheel))


def test_the_plugins_sources_are_shipped(wheel: Path) -> None:
    """Every file that the library's content hash is taken from, under the name it has in the checkout."""
    from andrea_export.operators.sources import CPU_FOLDERS, plugin_source_dir, plugin_source_files

    shipped = {
        name.removeprefix("andrea_export/_plugin_sources/") for name in names(wheel) if "_plugin_sources/" in name
    }
    files = (*plugin_source_files(), *plugin_source_files(CPU_FOLDERS))
    wanted = {path.relative_to(plugin_source_dir()).as_posix() for path in files}
    assert {"CMakeLists.txt", "gelu/op.json", "gelu/kernel.cu", "tensorrt/abi/tensorrt_plugin_abi.h"} <= wanted
    assert wanted <= shipped
    prose = {name for name in shipped - wanted if name.endswith((".md", ".clang-tidy"))}
    assert shipped - wanted == prose
    assert not [name for name in shipped if name.endswith((".so", ".o"))]


def test_the_plugins_maths_is_built_from_the_wheels_own_sources(wheel: Path, tmp_path: Path) -> None:
    """The wheel's copy, on this environment's packages, with no checkout on the path."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = (
        "import sys; from pathlib import Path; import andrea_export; "
        "from andrea_export.operators.sources import plugin_source_dir, plugin_sources_sha256; "
        "from andrea_export.operators.build import build_host_library; "
        "site = Path(sys.argv[1]); assert site in Path(andrea_export.__file__).parents, andrea_export.__file__; "
        "assert site in plugin_source_dir().parents, plugin_source_dir(); "
        "build_host_library(Path(sys.argv[2])); print(plugin_sources_sha256())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "site"), str(tmp_path / "cache")]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from andrea_export.operators.sources import plugin_sources_sha256

    assert done.stdout.strip() == plugin_sources_sha256()


def test_every_module_is_shipped(wheel: Path) -> None:
    sources = {
        str(path.relative_to(root))
        for root, package in ((ROOT, "andrea_export"), (ROOT / "model", "andrea_model"))
        for path in (root / package).rglob("*.py")
    }
    assert sources <= set(names(wheel))


def test_the_licence_is_shipped(wheel: Path) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in names(wheel))


def test_the_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"andrea_export-{__version__}.dist-info/entry_points.txt").decode()
    assert "andrea-export = andrea_export.__main__:main" in text


def test_no_path_of_this_machine_is_shipped(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            assert str(ROOT).encode() not in archive.read(name), name


# --- an environment with the wheel and typer, and nothing else --------------------------------------------------------


def closure(distribution: str) -> set[str]:
    """A distribution and everything it requires here, extras left out."""
    found: set[str] = set()
    waiting = [distribution]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another Python or another system
            continue
        found.add(name)
        waiting += [re.split(r"[\s<>=!~;\[(]", text)[0] for text in requires if "extra ==" not in text]
    return found


@pytest.fixture(scope="session")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel (``--no-deps``) and typer, linked from here: no network needed."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in closure("typer"):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            top = Path(file.parts[0])
            target = site / top
            if file.parts[0] not in ("..", "__pycache__") and not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))
    return folder / "bin"


def run(empty: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(empty / "andrea-export"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=empty,
        env={**clean, **environment},
    )


def test_nothing_else_is_installed(empty: Path) -> None:
    program = (
        "import importlib.util as u; print([m for m in ('torch', 'onnx', 'numpy', 'safetensors') if u.find_spec(m)])"
    )
    done = subprocess.run([str(empty / "python"), "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [(), *((command,) for command in COMMANDS)])
def test_help_needs_no_backend(empty: Path, arguments: tuple[str, ...]) -> None:
    done = run(empty, *arguments, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: andrea-export" in done.stdout


def test_version_needs_no_backend(empty: Path) -> None:
    assert run(empty, "--version").stdout == f"andrea-export {__version__}\n"


def test_doctor_needs_no_backend(empty: Path) -> None:
    done = run(empty, "doctor")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert text.count("torch is not installed") == 1
    assert "pip install andrea-export" in text
    assert "(here: g++ " in text  # compilers are looked for with the standard library alone
    assert run(empty, "doctor", "--require", "export").returncode == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "--preset", "andrea-tiny"),
        ("validate", "somewhere"),
        ("run", "somewhere", "--tokens", "5"),
        ("trace", "--preset", "andrea-tiny"),
        ("inspect", "andrea-export"),
    ],
)
def test_work_that_needs_a_package_names_it(empty: Path, arguments: tuple[str, ...]) -> None:
    done = run(empty, *arguments)
    assert done.returncode == 3, done.stderr
    assert re.match(r"^error: the Python package '\w+' is not installed\nhint: pip install", done.stderr)


@pytest.mark.parametrize("arguments", [["--help"], ["build", "--help"], ["--version"]])
def test_help_is_quick(arguments: list[str]) -> None:
    """It imports none of the packages that take seconds, where they are installed."""
    slow = ("torch", "onnx", "onnx_ir", "onnxscript", "numpy", "onnxruntime", "polygraphy", "safetensors")
    done = run_and_list(arguments, slow)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_judging_a_report_again_is_quick(example: Path) -> None:
    """It runs nothing, so a gate needs neither torch nor onnxruntime."""
    done = run_and_list(["check", str(example / "report.json")], ("torch", "onnx_ir", "onnxruntime", "polygraphy"))
    assert (done.returncode, done.stderr) == (1, "[]\n")  # the example has a planted fault


def run_and_list(arguments: list[str], packages: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own, which ends by printing to stderr which of the packages it imported."""
    program = (
        "import atexit, sys; "
        f"atexit.register(lambda: print(sorted(set(sys.modules) & set({packages!r})), file=sys.stderr)); "
        f"from andrea_export.cli import main; main({arguments!r})"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
