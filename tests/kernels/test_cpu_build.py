"""The cache of compiled kernels: private, keyed by everything that matters, whole or rebuilt, built once.

Verifies with stand-ins for the compiler that log each call; the real one builds what the other tests run.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcrucible.engine.kernels import cpu_build
from kvcrucible.engine.kernels.cpu_build import Unbuildable, is_whole, obtain

#: Stands for a compiler: logs each build, waits a little, and writes a "library".
STAND_IN = """#!/bin/sh
if [ "$1" = --version ]; then echo "stand-in {version}"; exit 0; fi
echo built >> {log}
sleep {seconds}
for word in "$@"; do [ "$last" = -o ] && out="$word"; last="$word"; done
{refusal}
echo library > "$out"
"""

MakeCompiler = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cpu_build.find_compiler.cache_clear()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeCompiler:
    """Return what makes a stand-in and names it in ``CC``; the log has a line for each build."""

    def make(version: str = "1", seconds: float = 0, refusal: str = "") -> Path:
        log, program = tmp_path / "log", tmp_path / "stand-in"
        program.write_text(
            STAND_IN.format(version=version, log=log, seconds=seconds, refusal=refusal), encoding="ascii"
        )
        program.chmod(0o755)
        monkeypatch.setenv("CC", str(program))
        cpu_build.find_compiler.cache_clear()
        return log

    return make


def builds(log: Path) -> int:
    return len(log.read_text(encoding="ascii").splitlines()) if log.exists() else 0


def test_a_library_is_built_once_and_then_found(compiler: MakeCompiler) -> None:
    log = compiler()
    first, second = obtain(), obtain()
    assert (first.built, second.built, builds(log)) == (True, False, 1)
    assert first.path == second.path
    assert is_whole(first.path)
    assert stat.S_IMODE(first.path.parent.stat().st_mode) == 0o700
    assert {entry.suffix for entry in first.path.parent.iterdir()} == {".so", ".lock"}


@pytest.mark.parametrize("change", ["source", "flags", "compiler", "processor"])
def test_whatever_the_bytes_depend_on_makes_another_entry(
    compiler: MakeCompiler, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log = compiler()
    before = obtain().path
    if change == "source":
        texts = cpu_build.sources()
        monkeypatch.setattr(cpu_build, "sources", lambda: texts | {"copy.c": texts["copy.c"] + b"\n"})
    elif change == "flags":
        monkeypatch.setattr(cpu_build, "COMMON_FLAGS", (*cpu_build.COMMON_FLAGS, "-g"))
    elif change == "compiler":
        compiler(version="2")
    else:
        monkeypatch.setattr(cpu_build, "processor", lambda: "another")
    assert obtain().path != before
    assert builds(log) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_entry_is_built_again(compiler: MakeCompiler, damage: str) -> None:
    log = compiler()
    path = obtain().path
    content = path.read_bytes()
    flipped = bytes([content[0] ^ 1]) + content[1:]
    path.write_bytes({"cut": content[:-1], "empty": b"", "flipped": flipped}[damage])
    assert not is_whole(path)
    assert obtain().built
    assert path.read_bytes() == content
    assert builds(log) == 2


def test_two_processes_at_once_build_once(compiler: MakeCompiler) -> None:
    log = compiler(seconds=0.5)
    code = "from kvcrucible.engine.kernels.cpu_build import obtain; print(obtain().built)"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = sorted(child.communicate(timeout=60)[0].strip() for child in children)
    assert told == ["False", "True"]
    assert builds(log) == 1


def test_a_lock_that_nobody_lets_go_is_given_up(
    compiler: MakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()
    path = obtain().path
    path.unlink()
    monkeypatch.setattr(cpu_build, "LOCK_TIMEOUT_SECONDS", 0)
    with path.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Unbuildable, match="another process"):
            obtain()
    assert obtain().built


def test_a_folder_that_others_may_enter_is_refused(compiler: MakeCompiler) -> None:
    log = compiler()
    folder = cpu_build.cache_directory()
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    with pytest.raises(Unbuildable, match="mode 0755"):
        obtain()
    folder.rmdir()
    folder.symlink_to(folder.parent)
    with pytest.raises(Unbuildable, match="mode 0700"):
        obtain()
    assert builds(log) == 0


def test_a_cache_that_cannot_be_made_is_a_reason(
    compiler: MakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Unbuildable, match="cannot be used"):
        obtain()


def test_a_compiler_that_does_not_know_the_processor_builds_without(compiler: MakeCompiler) -> None:
    log = compiler(refusal='case "$*" in *native*) echo "error: no native" >&2; exit 1;; esac')
    built = obtain()
    assert "-march=native" not in built.flags
    assert builds(log) == 2


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        ('echo "x.c:1: error: planted" >&2; exit 1', "status 1: x.c:1: error: planted"),
        ("exit 0", "no library"),
    ],
)
def test_a_build_that_fails_says_why_and_leaves_nothing(
    compiler: MakeCompiler, refusal: str, says: str
) -> None:
    compiler(refusal=refusal)
    with pytest.raises(Unbuildable, match=says):
        obtain()
    assert {entry.suffix for entry in cpu_build.cache_directory().iterdir()} == {".lock"}


def test_a_compiler_that_hangs_is_given_up(compiler: MakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(seconds=30)
    monkeypatch.setattr(cpu_build, "BUILD_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(Unbuildable, match="timed out"):
        obtain()


def test_the_least_recently_built_are_forgotten(
    compiler: MakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_build, "KEPT_ENTRIES", 2)
    paths = []
    for age, version in enumerate("123"):
        compiler(version=version)
        paths.append(obtain().path)
        os.utime(paths[-1], (age, age))
    compiler(version="4")
    last = obtain().path
    assert set(last.parent.glob("*.so")) == {last, paths[2]}


def test_no_compiler_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Unbuildable, match="tried cc gcc clang"):
        obtain()
    monkeypatch.setenv("CC", "mine -m32")
    with pytest.raises(Unbuildable, match="tried mine -m32"):
        obtain()


def test_a_processor_is_known_by_what_it_can_do(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text(
        "model name\t: Some\nflags\t\t: fpu avx2\nbogomips : 5\n\nmodel name\t: Other\n", encoding="ascii"
    )
    seen = cpu_build.processor(told)
    assert "Some" in seen
    assert "avx2" in seen
    assert "Other" not in seen
    assert "bogomips" not in seen
    assert cpu_build.processor(tmp_path / "absent")
