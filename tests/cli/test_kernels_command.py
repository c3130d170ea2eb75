"""``kvcrucible kernels`` and ``kvcrucible fuzz --kernels``: what they print, and the statuses they leave with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvcrucible.cli.main import build_app
from kvcrucible.contract.errors import InputError
from kvcrucible.perf import kernel_table

COUNTS = {
    "all": 9,
    "async_copy": 0,
    "barrier": 0,
    "global_load": 1,
    "global_store": 1,
    "matrix": 0,
    "shared": 0,
}


def variant(profile: str, spilled: int = 0) -> dict[str, Any]:
    names = {"kernel": "attend", "profile": profile, "head_dim": 64, "group": 4, "length": "prefill"}
    figures = {"registers": 96, "stack_bytes": 0, "shared_bytes": 1024, "num_warps": 4, "num_stages": 2}
    return (
        names | figures | {"spill_store_bytes": spilled, "spill_load_bytes": spilled, "instructions": COUNTS}
    )


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The variants that the compiler is taken to have made."""
    pytest.importorskip("triton", reason="the extra 'triton' brings it")
    variants: list[dict[str, Any]] = []

    def table(target: str, *_: Any) -> kernel_table.KernelTable:
        return kernel_table.KernelTable(target, {"triton": "9.9"}, tuple(variants))

    monkeypatch.setattr(kernel_table, "compile_table", table)
    return variants


def test_a_table_without_spills_holds(compiled: list[dict[str, Any]]) -> None:
    compiled.append(variant("BF16"))
    done = CliRunner().invoke(build_app(), ["kernels", "--json"])
    assert done.exit_code == 0
    (table,) = json.loads(done.stdout)["tables"]
    assert table["target"] == "sm_90"
    assert table["variants"][0]["registers"] == 96
    assert table["spilling"] == 0


@pytest.mark.parametrize(("profile", "status"), [("FP32", 0), ("BF16", 1), ("INT8-G64", 1)])
def test_spills_of_the_defaults_are_a_failure(
    compiled: list[dict[str, Any]], profile: str, status: int
) -> None:
    compiled.append(variant(profile, 8))
    done = CliRunner().invoke(build_app(), ["kernels"])
    assert done.exit_code == status
    assert ("must not spill" in done.stdout) == bool(status)
    assert "1 spill" in done.stdout


def test_what_a_target_cannot_hold_is_listed_with_the_reason(compiled: list[dict[str, Any]]) -> None:
    names = {"kernel": "attend", "profile": "FP32", "head_dim": 256, "group": 1, "length": "prefill"}
    compiled.append(names | {"unsupported": "99999 bytes of shared memory, 65536 there"})
    done = CliRunner().invoke(build_app(), ["kernels"])
    assert done.exit_code == 0
    assert "unsupported: attend FP32 256 1 prefill: 99999 bytes" in done.stdout


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(InputError, match="sm_90"):
        kernel_table.compile_table("sm_1")


@pytest.mark.slow
@pytest.mark.parametrize("target", kernel_table.TARGETS)
def test_the_defaults_are_compiled_without_spills(target: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton", reason="the extra 'triton' brings it")
    table = kernel_table.compile_table(target, ["INT8-G64"])
    assert len(table.variants) > 40
    assert {"attend", "reduce", "append_k", "append_v", "copy_columns", "pack", "unpack"} == {
        variant["kernel"] for variant in table.variants
    }
    attends = [one for one in table.variants if one["kernel"] == "attend" and "unsupported" not in one]
    assert all(one["instructions"]["matrix"] > 0 for one in attends)
    if target.startswith("sm_"):
        assert table.broken_promises == ()


def test_fuzzing_kernels_without_a_device_says_so_and_exits_5(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    done = CliRunner().invoke(build_app(), ["fuzz", "--kernels", "--backend", "cuda"])
    assert done.exit_code == 5
    assert "cuda: not run" in done.stdout


def test_fuzzing_kernels_reports_cells_as_json() -> None:
    pytest.importorskip("torch")
    command = [
        sys.executable,
        "-m",
        "kvcrucible",
        "fuzz",
        "--kernels",
        "--backend",
        "torch",
        "--profile",
        "FP32",
    ]
    command += ["--examples", "1", "--seconds", "0", "--seed", "1", "--json"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    (report,) = json.loads(done.stdout)["kernels"]
    assert report["cut_short"]
    assert report["uncovered_cells"]
