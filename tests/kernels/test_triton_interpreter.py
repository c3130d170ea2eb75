"""The Triton kernels through the interpreter, which is asked for before Triton is imported: in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra 'triton' brings it")
pytestmark = pytest.mark.torch

INTERPRETED = Path(__file__).with_name("triton_interpreted.py")


def run_interpreted(selection: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        selection,
        str(INTERPRETED),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def test_the_interpreted_tests_pass() -> None:
    done = run_interpreted("not slow")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_the_slow_interpreted_tests_pass() -> None:
    done = run_interpreted("slow")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_without_the_interpreter_main_memory_is_refused_with_the_way_out() -> None:
    code = """
import torch
from kvcrucible.engine.kernels.triton import backend
print(backend.why_not([torch.zeros(1, 1, 1, 1)], None))
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "TRITON_INTERPRET=1" in done.stdout, done.stderr
