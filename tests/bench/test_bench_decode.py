"""The decode benchmark at a size that takes no time: it compares equal things, and says where it cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from kvcrucible.contract.errors import BadArgument, NotRunError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from kvcrucible.engine.kernels import cpu_backend, cpu_library  # noqa: E402
from kvcrucible.perf import decode_bench  # noqa: E402
from kvcrucible.perf.decode_bench import Shape, machine, measure  # noqa: E402

SMALL = Shape(batch=2, query_heads=4, kv_heads=2, head_dim=64, page_size=64)


@pytest.fixture
def _compiled() -> None:
    reason = cpu_library.why_not()
    if reason is not None:
        pytest.skip(f"kernels cpu: {reason}")


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("profile", decode_bench.PROFILES)
def test_paged_and_contiguous_attend_to_the_same_numbers(profile: str) -> None:
    figures = measure(profile, 300, SMALL, rounds=3)
    assert figures.difference < (1e-5 if profile == "FP32" else 1e-2)
    assert figures.kv_bytes == 2 * 2 * 320 * 2 * 64 * (
        4 if profile == "FP32" else 2
    )  # 300 tokens, whole pages
    for one in (figures.speedup, figures.of_read):
        assert 0 < one.low <= one.median <= one.high


@pytest.mark.usefixtures("_compiled")
def test_another_answer_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = decode_bench.paged_attention

    def shorter(q: Any, view: Any, rows: Any, ones: Any, contexts: Any, **options: Any) -> Any:
        return attend(q, view, rows, ones, [context - 1 for context in contexts], **options)

    monkeypatch.setattr(decode_bench, "paged_attention", shorter)
    assert measure("FP32", 300, SMALL, rounds=3).difference > 1e-4


@pytest.mark.usefixtures("_compiled")
def test_reading_reads_every_whole_block() -> None:
    block = cpu_library.READ_FLOATS
    tensors = [torch.ones(3 * block), torch.ones(block + 5), torch.ones(7)]
    assert cpu_backend.read_through(tensors) == 4 * 4 * block


def test_what_cannot_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for profile, rounds in (("INT8-G64", 3), ("FP32", 2)):
        with pytest.raises(BadArgument):
            measure(profile, 64, SMALL, rounds)
    monkeypatch.setattr(cpu_library, "why_not", lambda: "no C compiler runs here")
    with pytest.raises(NotRunError, match="no C compiler"):
        machine()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "kvcrucible",
        "bench-decode",
        "--context",
        "64",
        "--rounds",
        "3",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)


@pytest.mark.usefixtures("_compiled")
def test_the_command_writes_json_and_a_table() -> None:
    done = run("--profile", "BF16", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["machine"]["threads"] == 1
    assert [(case["profile"], case["context"]) for case in told["cases"]] == [("BF16", 64)]
    shown = run("--profile", "BF16", "--threads", "1", COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert "bytes a call" in shown.stdout


def test_without_a_compiler_nothing_is_claimed() -> None:
    done = run(CC="no-such-compiler")
    assert done.returncode == 5
    assert "no-such-compiler" in done.stderr
    assert run("--profile", "INT8-G64").returncode == 2
