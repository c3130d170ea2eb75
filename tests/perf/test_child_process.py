"""A child process is run to its end: what it printed comes back, and one line says whatever went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.child_process import run_child

#: Bytes that a process may print here.
MOST = 100


def ran(text: str, seconds: float = 60.0, folder: Path | None = None) -> str:
    return run_child(
        [sys.executable, "-S", "-c", text],
        "it",
        timeout_seconds=seconds,
        most_bytes=MOST,
        environment={"WORD": "given"},
        folder=folder,
        silent="nobody knows why",
    )


def test_what_it_prints_comes_back_from_where_and_with_what_it_was_to_run(tmp_path: Path) -> None:
    program = (
        "import os, sys; print(os.getcwd(), os.environ['WORD'], 'PATH' in os.environ, len(sys.stdin.read()))"
    )
    assert ran(program, folder=tmp_path).split() == [str(tmp_path.resolve()), "given", "False", "0"]
    assert ran("import sys; sys.stdout.buffer.write(bytes([97, 255]))") == "a\ufffd"
    assert len(ran(f"print('x' * {MOST - 1})")) == MOST


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit(3)", "it: status 3; nobody knows why"),
        ("import sys; sys.stderr.write('first\\nlast\\n'); sys.exit(4)", "it: status 4; last"),
        ("import sys; sys.stderr.write('x' * 9999); sys.exit(4)", f"it: status 4; {'x' * 300}"),
        ("import os; os.kill(os.getpid(), 9)", "it: status -9; nobody knows why"),
        (f"print('x' * {MOST})", f"it: more than {MOST} bytes of output"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        ran(text)
    assert str(refused.value) == said


def test_one_that_takes_too_long_or_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match=r"^it: .*timed out"):
        ran("import time; time.sleep(60)", seconds=0.2)
    with pytest.raises(InputError, match=r"^it: .*No such file"):
        run_child(["/no/such/program"], "it", timeout_seconds=9, most_bytes=MOST)
