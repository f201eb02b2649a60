"""A cache of CMake builds by content: an entry is complete and unchanged, or it is built again.

An entry is a folder ``<cache>/plugins/<target>-<key>/`` holding the library and ``build.json`` with its hash.
It is built beside and renamed into place under a file lock, which the system drops with the process: a build
that is killed leaves a folder that the next one removes, and two builds of one key make one.
"""

import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import PluginError
from andrea_export.core.hashing import sha256_of
from andrea_export.operators.toolchain import compilers_environment

# kernel.cu is one file and takes most of the time; nvcc runs its architectures side by side by itself.
_JOBS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CmakeBuild:
    """One target of one CMake project, and the identity its result is cached under."""

    source_dir: Path
    target: str
    cmake: Path
    ninja: Path
    definitions: Mapping[str, str]
    identity: Mapping[str, str]

    @property
    def key(self) -> str:
        """The cache key: a hash over `identity`, as which the caller names what it builds from and with.

        Tools are in it by the versions they state: two builds of one compiler that state the same one share a key, as
        do two assemblers or linkers under one g++.
        """
        return hashlib.sha256(json.dumps(dict(self.identity), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLibrary:
    """A library in the cache whose hash was just verified or written."""

    library: Path
    library_sha256: str
    key: str
    reused: bool


def cached_build(cache_dir: Path, build: CmakeBuild, *, on_line: Callable[[str], None] | None = None) -> CachedLibrary:
    """The library of `build`, from the cache if its entry there is whole, else compiled and put there.

    Raises: PluginError if the sources do not compile, or the cache cannot be written.
    """
    folder = cache_dir / "plugins"
    entry = folder / f"{build.target}-{build.key}"
    lock = folder / f"{entry.name}.lock"
    whole = _whole_entry(entry, build)
    if whole is not None:
        _sweep(entry, lock)
        return whole
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # waits for another process that holds it
            whole = _whole_entry(entry, build)  # another process may have built it while this one waited
            if whole is not None:
                return whole
            return _build_entry(folder, entry, build, on_line)
    except OSError as error:
        raise PluginError(
            f"the plugin cache {folder} cannot be used: {error.strerror or error}",
            hint="choose another cache folder, or make this one writable",
        ) from error


def _build_entry(folder: Path, entry: Path, build: CmakeBuild, on_line: Callable[[str], None] | None) -> CachedLibrary:
    for leftover in _leftovers(entry):
        shutil.rmtree(leftover, ignore_errors=True)
    log = folder / f"{entry.name}.log"
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{entry.name}.", ignore_cleanup_errors=True) as temporary:
        work = Path(temporary) / "build"
        with log.open("w") as log_file:
            configure = [
                *(str(build.cmake), "-S", str(build.source_dir), "-B", str(work), "-G", "Ninja"),
                f"-DCMAKE_MAKE_PROGRAM={build.ninja}",
                *(f"-D{name}={value}" for name, value in build.definitions.items()),
            ]
            compile_ = [str(build.cmake), "--build", str(work), "--target", build.target, "-j", str(_JOBS)]
            for command in (configure, compile_):
                lines: list[str] = []
                code = _run(command, log_file.write, lines, on_line)
                if code != 0:
                    raise PluginError(
                        f"{build.target} does not build: {_first_error(lines, code)}",
                        hint=f"the compilers' whole output is in {log}",
                    )
        built = work / f"lib{build.target}.so"
        if not built.is_file():
            raise PluginError(
                f"{build.target} was built, but {built.name} is not there",
                hint=f"see the build's output in {log}",
            )
        finished = Path(temporary) / "entry"
        finished.mkdir()
        shutil.copyfile(built, finished / built.name)
        sha256 = sha256_of(finished / built.name)
        record = {**build.identity, "key": build.key, "library_sha256": sha256}
        (finished / "build.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
        _sync(finished / built.name)
        _sync(finished / "build.json")
        if entry.exists():  # damaged, or it would have been used
            entry.rename(Path(temporary) / "damaged")
        finished.rename(entry)
    return CachedLibrary(library=entry / built.name, library_sha256=sha256, key=build.key, reused=False)


def _leftovers(entry: Path) -> list[Path]:
    """Folders of builds of this entry that are running, or were killed."""
    return list(entry.parent.glob(f".{entry.name}.*"))


def _sweep(entry: Path, lock: Path) -> None:
    """Removes what killed builds left, if no build is running.

    A killed build's compilers may outlive it and write its folder anew after the next build removed it, so whoever
    finds the entry whole looks again. A folder that cannot be removed is in nobody's way.
    """
    leftovers = _leftovers(entry)
    if not leftovers:
        return
    try:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in leftovers:
                shutil.rmtree(leftover, ignore_errors=True)
    except OSError:  # a build is running, or the cache is read-only
        return


def _whole_entry(entry: Path, build: CmakeBuild) -> CachedLibrary | None:
    """The entry, if its library is the one that was put there."""
    library = entry / f"lib{build.target}.so"
    try:
        record = json.loads((entry / "build.json").read_text())
        sha256 = sha256_of(library)
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("key") != build.key or record.get("library_sha256") != sha256:
        return None
    return CachedLibrary(library=library, library_sha256=sha256, key=build.key, reused=True)


def _run(
    command: list[str],
    write_log: Callable[[str], object],
    lines: list[str],
    on_line: Callable[[str], None] | None,
) -> int:
    write_log(f"$ {' '.join(command)}\n")
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=compilers_environment(os.environ),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                write_log(line)
                lines.append(line.rstrip("\n"))
                if on_line is not None:
                    on_line(lines[-1])
        except BaseException:
            process.kill()
            raise
    return process.returncode


def _first_error(lines: list[str], code: int) -> str:
    """The line a person would look for: the compiler's first error, or CMake's with the message under it."""
    for index, line in enumerate(lines):
        if line.startswith("CMake Error"):
            # CMake wraps its message into indented lines, with empty ones around long words.
            indented = itertools.takewhile(lambda text: text[:1] in ("", " "), lines[index + 1 :])
            return " ".join(f"{line} {' '.join(indented)}".split())
        if re.search(r"\b(fatal )?error\b\s*[:#(]|\berror:|undefined reference|ptxas fatal", line):
            return line.strip()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"exit code {code}: {last}"


def _sync(path: Path) -> None:
    """Puts the file on the disk before it is renamed: a power cut must not leave a name without content."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
