"""Compiles the CPU kernels at first use and keeps the library in a cache of the user's own.

An entry of the cache is one file, ``KEY.so``: the shared library with its own digest behind it.  The key is a digest of
everything that the bytes depend on (sources, flags, compiler, processor), so an entry is never out of date; it is
written under another name and renamed, so it is whole or not there; and it is checked before it is loaded, so one that
was damaged since is built again.  A file lock lets one process build while the others wait.  The folder belongs to the
user and nobody else may enter it (mode 0700): what lies in it is loaded as code.

Standard library only; ``kvcrucible doctor`` looks here without importing torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

#: Seconds that the compiler may take; it needs about one on an idle machine.
BUILD_TIMEOUT_SECONDS = 120
#: Seconds that a process waits for another one's build: its whole time limit and a margin.
LOCK_TIMEOUT_SECONDS = BUILD_TIMEOUT_SECONDS + 30
#: Seconds that the compiler may take to state its version.
VERSION_TIMEOUT_SECONDS = 10
#: Libraries kept: some environments and versions side by side.  The least recently built go first.
KEPT_ENTRIES = 16

#: C compilers in the order in which they are tried, after ``$CC``.
COMPILERS = ("cc", "gcc", "clang")

#: Products may be contracted with sums; nothing else that changes a result is allowed.  The two last only say that
#: nobody reads ``errno`` or the exception flags, without which rounding to an integer is a call.
COMMON_FLAGS = (
    "-std=c11",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-pthread",
)
#: What is added, the first that the compiler takes: some know no name for the processor that they run on.
TARGET_FLAGS = (("-march=native",), ())

_DIGEST_BYTES = hashlib.sha256().digest_size


class Unbuildable(Exception):
    """The kernels cannot be compiled here; the message says why, in one line."""


class _Refused(Unbuildable):
    """The compiler ran and refused its flags or the text: other flags may do."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler that runs: the command's words, and the first line of what ``--version`` says."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Built:
    """A library that is ready to be loaded; ``built`` where this call compiled it, else it was in the cache."""

    path: Path
    compiler: Compiler
    flags: tuple[str, ...]
    built: bool


def cache_directory() -> Path:
    """Return the folder of libraries: under ``$XDG_CACHE_HOME`` (a relative one is ignored) or ``~/.cache``; creates
    nothing.
    """
    configured = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return root / "kvcrucible" / "kernels"


def sources() -> dict[str, bytes]:
    """Return the C files and their headers by name, as they are installed."""
    folder = files("kvcrucible.engine.kernels") / "csrc"
    named = {
        entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith((".c", ".h"))
    }
    return dict(sorted(named.items()))


@cache
def find_compiler(configured: str) -> Compiler:
    """Return the first compiler that runs: ``configured`` (words as in ``$CC``) if there is one, else of ``COMPILERS``.

    Raises :class:`Unbuildable` where none does; a configured one that does not run is not replaced by another.
    """
    candidates = [tuple(shlex.split(configured))] if configured.strip() else [(name,) for name in COMPILERS]
    for command in candidates:
        path = shutil.which(command[0])
        if path is None:
            continue
        try:
            told = _run((path, *command[1:], "--version"), VERSION_TIMEOUT_SECONDS)
        except Unbuildable:
            continue
        return Compiler((path, *command[1:]), (told.splitlines() or [""])[0])
    tried = " ".join(" ".join(command) for command in candidates)
    raise Unbuildable(f"no C compiler runs here (tried {tried})")


def obtain() -> Built:
    """Return the library, from the cache or compiled now.

    Raises :class:`Unbuildable` where there is no compiler, it fails, or the cache cannot be used; then nothing is left
    behind.  Waits while another process builds the same.
    """
    compiler = find_compiler(os.environ.get("CC", ""))
    folder = cache_directory()
    try:
        _make_private(folder)
        texts = sources()
        refusals: list[_Refused] = []
        for target in TARGET_FLAGS:
            flags = (*COMMON_FLAGS, *target)
            path = folder / f"{_key(texts, flags, compiler)}.so"
            try:
                return Built(path, compiler, flags, _ensure(path, texts, flags, compiler))
            except _Refused as error:
                refusals.append(error)
        raise refusals[0]
    except OSError as error:
        raise Unbuildable(f"the cache of compiled kernels cannot be used: {error}") from error


def is_whole(path: Path) -> bool:
    """Tell whether ``path`` is a library with its own digest behind it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return bool(body) and hashlib.sha256(body).digest() == digest


def _ensure(path: Path, texts: dict[str, bytes], flags: tuple[str, ...], compiler: Compiler) -> bool:
    """Make ``path`` a whole library; return whether it had to be compiled."""
    if is_whole(path):
        return False
    with _lock(path.with_suffix(".lock")):
        if is_whole(path):  # another process was faster
            return False
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as made:
            output = _compile(Path(made), texts, flags, compiler)
            body = output.read_bytes()
            output.write_bytes(body + hashlib.sha256(body).digest())
            os.replace(output, path)
        _forget_old(path.parent, keep=path)
    return True


def _compile(folder: Path, texts: dict[str, bytes], flags: tuple[str, ...], compiler: Compiler) -> Path:
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    output = folder / "kernels.so"
    units = [str(folder / name) for name in texts if name.endswith(".c")]
    _run((*compiler.command, *flags, *units, "-o", str(output), "-lm"), BUILD_TIMEOUT_SECONDS)
    if not output.is_file():
        raise Unbuildable(f"{compiler.command[0]} wrote no library")
    return output


def _run(command: tuple[str, ...], timeout_seconds: int) -> str:
    """Run a compiler and return its standard output; raises :class:`Unbuildable`."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unbuildable(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "no word of why")
        raise _Refused(f"{command[0]} failed with status {done.returncode}: {said.strip()}")
    return done.stdout


def _key(texts: dict[str, bytes], flags: tuple[str, ...], compiler: Compiler) -> str:
    digest = hashlib.sha256()
    for part in (*flags, *compiler.command, compiler.version, processor()):
        digest.update(part.encode() + b"\0")
    for name, text in texts.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(text).digest())
    return digest.hexdigest()[:32]


@cache
def processor(source: Path = Path("/proc/cpuinfo")) -> str:
    """Return what tells this processor from one that may lack its instructions: kind, model, instruction sets."""
    told = [platform.machine(), platform.libc_ver()[1]]
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return " ".join([*told, platform.processor()])
    named = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")
    return " ".join([*told, *(line for line in lines if line.startswith(named))])


def _make_private(folder: Path) -> None:
    """Create ``folder``, or refuse one in which somebody else could put a file."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & 0o077:
        raise Unbuildable(f"{folder} has to be a folder of this user with mode 0700, and has mode {mode:04o}")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; it ends with the process at the latest."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unbuildable(
                        f"another process has held {path} for {LOCK_TIMEOUT_SECONDS} s"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _forget_old(folder: Path, keep: Path) -> None:
    """Remove the least recently built libraries beyond ``KEPT_ENTRIES``; one in use stays mapped where it is loaded."""
    entries = sorted(folder.glob("*.so"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[KEPT_ENTRIES:]:
        if entry != keep:
            entry.unlink(missing_ok=True)
            entry.with_suffix(".lock").unlink(missing_ok=True)
