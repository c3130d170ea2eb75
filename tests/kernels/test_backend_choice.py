"""Which kernels a call gets: its own word, the storage's, the environment's, else the best that works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from kvcrucible.engine.kernels import backends, cpu_backend, cpu_library, torch_backend  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    monkeypatch.setattr(cpu_library, "why_not", lambda: None)


def storage(**options: Any) -> Any:
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    return TorchStorage(PROFILES["FP32"], Geometry(1, 1, 4), 2, 4, 1, 1, **options)


def chosen(**options: Any) -> Any:
    return backends.choose(None, storage(**options).planes())


def test_the_compiled_kernels_are_preferred_and_the_plain_ones_stand_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chosen() is cpu_backend
    monkeypatch.setattr(cpu_library, "why_not", lambda: "no C compiler runs here")
    assert chosen() is torch_backend


def test_a_name_is_kept_to_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    planes = storage().planes()
    assert backends.choose("torch", planes) is torch_backend
    assert backends.choose("cpu", planes) is cpu_backend
    monkeypatch.setenv(backends.VARIABLE, "torch")
    assert backends.choose(None, planes) is torch_backend
    assert backends.choose("cpu", planes) is cpu_backend
    monkeypatch.setattr(cpu_library, "why_not", lambda: "no C compiler runs here")
    with pytest.raises(BadArgument, match="no C compiler"):
        backends.choose("cpu", planes)
    monkeypatch.setenv(backends.VARIABLE, "abacus")
    with pytest.raises(BadArgument, match="cpu, triton, torch here"):
        backends.choose(None, planes)


def test_a_storage_names_kernels_for_everything_that_works_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def note(name: str) -> Any:
        return lambda *arguments: called.append(name) or (None, None)

    for name in ("append", "paged_attention", "copy_columns"):
        monkeypatch.setattr(torch_backend, name, note(name))
    from kvcrucible.engine.kernels.api import paged_attention

    with pytest.raises(BadArgument, match="abacus"):
        storage(backend="abacus")
    held = storage(backend="torch")
    held.write_table(0, 0, [1])
    held.append(0, [0], [0], [1], torch.ones(1, 1, 4), torch.ones(1, 1, 4))
    held.copy_columns(0, 0, 1, 2)
    paged_attention(torch.ones(1, 1, 4), held.layer_view(0), [0], [1], [1])
    assert called == ["append", "copy_columns", "paged_attention"]


def test_what_the_compiled_kernels_cannot_read_they_leave_to_others() -> None:
    planes = storage().planes()
    every_other = torch.zeros(2, 1, 4, 8)[..., ::2]
    assert backends.choose(None, [*planes, every_other]) is torch_backend
    assert "rows of a page" in str(cpu_backend.why_not([every_other], None))
    assert "int32" in str(cpu_backend.why_not(planes, torch.zeros(1, 1, dtype=torch.int64)))
    assert "meta" in str(cpu_backend.why_not([torch.empty(2, 1, 4, 4, device="meta")], None))


@pytest.mark.parametrize("says", ["interface 0", "cannot open"])
def test_a_library_that_is_not_ours_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Asked in a process of its own, where nothing has been loaded yet."""
    code = f"""
import ctypes, types
from kvcrucible.engine.kernels import cpu_library
built = types.SimpleNamespace(path="/nowhere/at/all.so")
cpu_library.obtain = lambda: built
if {says == "interface 0"}:
    cpu_library.ctypes = types.SimpleNamespace(CDLL=lambda path: types.SimpleNamespace(kv_interface=lambda: 0))
print(cpu_library.why_not())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert says in done.stdout, done.stderr


def test_back_ends_do_not_import_one_another() -> None:
    code = """
import sys
from kvcrucible.engine.kernels import {one}
print(sorted(name for name in sys.modules if name.startswith("kvcrucible.engine.kernels.")))
"""
    for one, other in (("cpu_backend", "torch_backend"), ("torch_backend", "cpu_backend")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(one=one)], capture_output=True, text=True, timeout=120
        )
        assert f"kernels.{one}" in done.stdout, done.stderr
        assert other not in done.stdout
        assert "kernels.api" not in done.stdout
