"""Refusing foreign libraries: what is not a plugin library is named, and never loaded into this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from andrea_export.core.errors import PluginError
from andrea_export.operators.creators import check_library, read_creators
from andrea_export.operators.sources import andrea_gelu
from support.plugin_builds import PLUGIN_ON_CPU, compile_library


def refused(library: Path, reason: str) -> PluginError:
    with pytest.raises(PluginError, match=reason) as caught:
        read_creators(library)
    assert str(library) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    return caught.value


def test_a_missing_library(tmp_path: Path) -> None:
    refused(tmp_path / "libnone.so", "No such file")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20], ids=["empty", "four bytes", "a script"])
def test_a_file_that_is_no_library(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "libtext.so"
    library.write_bytes(content)
    refused(library, "expected a shared library")


def test_a_folder(tmp_path: Path) -> None:
    refused(tmp_path, "cannot be read")


def test_a_truncated_library(tmp_path: Path, cpp_programs: Path) -> None:
    library = tmp_path / "libshort.so"
    library.write_bytes((cpp_programs / PLUGIN_ON_CPU).read_bytes()[:2000])
    refused(library, "cannot be loaded|crashed the process")


def test_a_library_of_another_machine(tmp_path: Path, cpp_programs: Path) -> None:
    content = bytearray((cpp_programs / PLUGIN_ON_CPU).read_bytes())
    other = 62 if content[18] == 183 else 183
    content[18:20] = other.to_bytes(2, "little")
    library = tmp_path / "libother.so"
    library.write_bytes(bytes(content))
    refused(library, "built for (aarch64|x86_64), this machine is")


def test_a_library_without_get_creators(tmp_path: Path) -> None:
    error = refused(compile_library(tmp_path, "int nothing;"), "exports no getCreators")
    assert error.hint is not None
    assert "getCreators and setLoggerFinder" in error.hint


def test_a_library_that_needs_another_one_that_is_not_there(tmp_path: Path) -> None:
    source = 'extern "C" int missing_function(); int call() { return missing_function(); } int x = call();'
    refused(compile_library(tmp_path, source), "cannot be loaded: .*missing_function")


def test_a_library_that_crashes_while_loading(tmp_path: Path) -> None:
    source = "#include <cstdlib>\nstruct Crash { Crash() { std::abort(); } } crash;"
    refused(compile_library(tmp_path, source), "crashed the process that loaded it .SIGABRT.")


def test_a_library_that_exits_while_loading(tmp_path: Path) -> None:
    source = "#include <unistd.h>\nstruct Quit { Quit() { _exit(0); } } quit;"
    refused(compile_library(tmp_path, source), "ended the process that loaded it")


def test_a_library_that_talks_while_loading(tmp_path: Path) -> None:
    """What it prints is not taken for the answer."""
    source = (
        '#include <cstdio>\nstruct Talk { Talk() { std::puts("hello"); std::puts("{}"); } } talk;\n'
        'extern "C" void* const* getCreators(int& count) { count = 0; return nullptr; }'
    )
    library = compile_library(tmp_path, source)
    assert read_creators(library) == ()
    with pytest.raises(PluginError, match="the library offers no creator at all"):
        check_library(library, andrea_gelu())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("count = -1; return nullptr;", "counts -1 creators"),
        ("count = 2; return nullptr;", "counts 2 creators"),
        ("static void* none[1] = {nullptr}; count = 1; return none;", "creator 0 of 1 is null"),
        ("static void* bad[1] = {(void*)16}; count = 1; return bad;", "crashed the process.*SIGSEGV"),
    ],
)
def test_creators_that_are_none(tmp_path: Path, body: str, reason: str) -> None:
    refused(compile_library(tmp_path, f'extern "C" void* const* getCreators(int& count) {{ {body} }}'), reason)


def test_a_creator_of_an_unknown_kind(tmp_path: Path) -> None:
    source = """
    struct Info { char const* kind; int major; int minor; };
    struct Creator {
      virtual int language() const noexcept { return 0; }
      virtual Info info() const noexcept { return {"PLUGIN CREATOR_V9", 9, 0}; }
      virtual ~Creator() {}
    };
    extern "C" void* const* getCreators(int& count) {
      static Creator creator; static void* list[1] = {&creator}; count = 1; return list;
    }"""
    refused(compile_library(tmp_path, source), "unknown kind 'PLUGIN CREATOR_V9'")


def test_the_package_imports_no_tensorrt() -> None:
    code = (
        "import importlib, pkgutil, sys, andrea_export.operators as package; "
        "names = [f'{package.__name__}.{module.name}' for module in pkgutil.iter_modules(package.__path__)]; "
        "[importlib.import_module(name) for name in names]; "
        "print(package.build.__name__, any('tensorrt' in name for name in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "andrea_export.operators.build False"
