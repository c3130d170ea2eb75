"""``kvcrucible fuzz`` as people run it: real processes, exit statuses, JSON, hostile arguments."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.contract.errors import ExitStatus

COMMAND = [sys.executable, "-m", "kvcrucible", "fuzz"]

#: Runs the command line with an engine that shares a partial tail instead of copying it.
BROKEN = """
import sys
from kvcrucible.engine.space import AddressSpace

def fork(self, ledger, reservation, position, copy):
    pages = self.pages[: -(-position // self.page_size)]
    ledger.share(pages)
    return AddressSpace(self.pool, self.page_size, pages, position)

AddressSpace.fork = fork
from kvcrucible.cli.main import main
sys.argv[0] = "kvcrucible"
main()
"""

#: Runs the command line and says on a line of its own that the first example is over.
SAYING_WHEN = """
import sys
from kvcrucible.fuzz.driver import Driver

teardown = Driver.teardown

def first_teardown(self):
    teardown(self)
    Driver.teardown = teardown
    print("first example over", flush=True)

Driver.teardown = first_teardown
from kvcrucible.cli.main import main
sys.argv[0] = "kvcrucible"
main()
"""

#: Runs the command line and says on a line of its own that the first cell is about to be tried.
FAILING = """
import sys
from kvcrucible.fuzz.nth_failure import campaign

try_cell = campaign.try_cell

def first_cell(cell):
    campaign.try_cell = try_cell
    print("first cell", flush=True)
    return try_cell(cell)

campaign.try_cell = first_cell
from kvcrucible.cli.main import main
sys.argv[0] = "kvcrucible"
main()
"""

#: Runs the command line with a harness that falls over in its first example.
FALLING_OVER = """
import sys
from kvcrucible.reference.accounting import AccountingModel

def fall_over(self, *arguments):
    raise ZeroDivisionError("the harness is wrong")

AccountingModel.__init__ = fall_over
from kvcrucible.cli.main import main
sys.argv[0] = "kvcrucible"
main()
"""


def kvcrucible_fuzz(
    *arguments: str, command: list[str] = COMMAND, **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=300, **options
    )


def test_a_campaign_that_holds_ends_with_its_tables(tmp_path: Path) -> None:
    done = kvcrucible_fuzz("--examples", "20", "--depth", "ledger", "--seed", "5", cwd=tmp_path)
    assert done.returncode == ExitStatus.HELD, done.stderr
    for part in (
        "operations by kind",
        "refusals by kind",
        "coverage goals",
        "ordered pairs of operations",
        "invariants judged",
        "steps/s",
        "seed 5",
        "held",
    ):
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_document_and_repeats_itself(tmp_path: Path) -> None:
    arguments = ("--examples", "15", "--depth", "ledger", "--seed", "7", "--json")
    first, second = (json.loads(kvcrucible_fuzz(*arguments, cwd=tmp_path).stdout) for _ in range(2))
    assert first.pop("seconds") >= 0
    second.pop("seconds")
    assert first == second
    assert first["format"] == "kvcrucible.fuzz-report/1"
    assert first["failure"] is None
    assert first["examples"] >= 15


def test_a_violation_prints_the_sequence_and_writes_a_test(tmp_path: Path) -> None:
    done = kvcrucible_fuzz(
        "--depth",
        "ledger",
        "--seed",
        "1",
        "--out",
        str(tmp_path),
        command=[sys.executable, "-c", BROKEN, "fuzz"],
    )
    assert done.returncode == ExitStatus.VIOLATION, done.stderr
    assert "minimal sequence" in done.stdout
    assert "BeginUnit(" in done.stdout
    (path,) = tmp_path.glob("test_*.py")
    mended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert mended.returncode == 0, mended.stdout


def test_a_harness_that_falls_over_says_which_seed_it_had_drawn(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FALLING_OVER, "fuzz"]
    done = kvcrucible_fuzz("--examples", "20", "--depth", "ledger", cwd=tmp_path, command=command)
    assert done.returncode == ExitStatus.INTERNAL, done.stdout
    assert "ZeroDivisionError: the harness is wrong" in done.stderr
    assert re.fullmatch(r"drawn: --seed \d+", done.stderr.splitlines()[-1])


def test_a_time_limit_is_inconclusive(tmp_path: Path) -> None:
    done = kvcrucible_fuzz("--examples", "100000", "--seconds", "0.1", "--depth", "ledger", cwd=tmp_path)
    assert done.returncode == ExitStatus.INCONCLUSIVE
    assert "time limit" in done.stdout


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_was_done(asked: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SAYING_WHEN, "fuzz", "--examples", "1000000", "--depth", "ledger"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        # A shell starts background jobs with interrupts ignored, and these tests may run in one.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - one call, no lock
    )  # fmt: skip
    assert process.stdout is not None
    assert "first example over" in process.stdout.readline()
    process.send_signal(asked)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED, err
    assert "interrupted" in out


def test_a_finding_is_kept_where_it_is_interrupted_while_it_is_made_smaller(tmp_path: Path) -> None:
    script = f"""
from kvcrucible.fuzz import campaign

def shrinking(*_):
    print("shrinking", flush=True)
    import time
    time.sleep(60)

campaign.minimise = shrinking
{BROKEN}"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, "fuzz", "--depth", "ledger", "--seed", "3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    assert "shrinking" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.VIOLATION, err
    assert "VIOLATION: " in out
    assert "interrupted" in out
    assert list((tmp_path / "results" / "failures").glob("test_*.py"))


@pytest.mark.parametrize("times", [1, 5])
def test_what_has_no_report_when_it_is_interrupted_says_its_seed(times: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING, "nth-failure", "--cells", "1000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    assert "first cell" in process.stdout.readline()
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED, err
    assert re.search(r"^interrupted\ndrawn: --seed \d+$", err, re.MULTILINE), err


def test_a_job_that_is_ended_with_all_its_processes_is_interrupted(tmp_path: Path) -> None:
    """``timeout`` and CI systems end a whole group, of which the workers of ``--jobs`` are."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcrucible", "fuzz", "--raw", "--seeds", "1000000", "--jobs", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text("utf-8").split()) < 3:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED, err
    assert "interrupted" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "[red]mine[/red]\x1b[2J"), "unknown engine"),
        (("--depth", "deep"), "unknown depth"),
        (("--host", "maybe"), "unknown host"),
        (("--pools", "draft"), "unknown pools"),
        (("--examples", "0"), "--examples"),
    ],
)
def test_a_bad_argument_is_a_usage_error(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = kvcrucible_fuzz(*arguments, cwd=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert message in done.stderr
    assert "\x1b[2J" not in done.stderr + done.stdout


def without(*libraries: str) -> list[str]:
    """Return the command in a Python where these libraries do not exist."""
    blocked = f"""
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {libraries!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Absent())
        sys.argv[0] = "kvcrucible"
        from kvcrucible.cli.main import main
        main()
        """
    return [sys.executable, "-c", textwrap.dedent(blocked), "fuzz"]


TENSOR_LIBRARIES = ("torch", "numpy", "triton", "pynvml")


def test_ledger_depth_needs_no_torch_and_the_command_that_brings_it_is_named(tmp_path: Path) -> None:
    done = kvcrucible_fuzz("--examples", "5", "--seed", "1", command=without(*TENSOR_LIBRARIES), cwd=tmp_path)
    assert done.returncode == ExitStatus.HELD, done.stderr
    assert "depth ledger" in done.stdout
    assert "`pip install '.[engine]'`" in done.stderr


def test_an_unknown_engine_is_all_that_is_said(tmp_path: Path) -> None:
    done = kvcrucible_fuzz("--engine", "nope", command=without(*TENSOR_LIBRARIES), cwd=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    known = "known: paged, torch-paged-attention; of the judge: canary, cheater-"
    assert done.stderr.startswith(f"error: unknown engine 'nope'; {known}")
    assert done.stderr.endswith("; your own: package.module:factory\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (("--engine", "torch-paged-attention"), "torch"),
        (("--depth", "payload"), "torch"),
        (("--engine", "torch-paged-attention"), "numpy"),
    ],
)
def test_an_absent_library_is_named_with_the_command_that_brings_it(
    arguments: tuple[str, ...], absent: str, tmp_path: Path
) -> None:
    if absent == "numpy":
        pytest.importorskip("torch")
    done = kvcrucible_fuzz(*arguments, command=without(absent), cwd=tmp_path)
    assert done.returncode == ExitStatus.NOT_RUN, done.stderr
    assert f"{absent} is not installed; get it with `pip install '.[engine]'`" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("not run: ")
    assert "No module named" not in done.stderr.splitlines()[-1]


def test_shrinking_is_told(tmp_path: Path) -> None:
    done = kvcrucible_fuzz(
        "--depth", "ledger", "--seed", "1", "--out", str(tmp_path),
        command=[sys.executable, "-c", BROKEN, "fuzz"],
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == ExitStatus.VIOLATION
    before, _, after = done.stderr.partition("found one, shrinking")
    assert "fuzzing paged" in before
    assert after


def test_minimal_steps_leave_out_what_is_default(tmp_path: Path) -> None:
    done = kvcrucible_fuzz(
        "--depth", "ledger", "--seed", "1", "--out", str(tmp_path),
        command=[sys.executable, "-c", BROKEN, "fuzz"],
    )  # fmt: skip
    shown = done.stdout[done.stdout.index("minimal sequence") :]
    assert "Submit(prompt=" in shown
    for default in (
        "identity=",
        "session=None",
        "consume=False",
        "backend=None",
        "poison=",
        "engine='paged'",
    ):
        assert default not in shown


def test_a_violation_is_reported_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = kvcrucible_fuzz(
        "--depth", "ledger", "--seed", "1", "--json", "--out", str(tmp_path / "file" / "x"),
        command=[sys.executable, "-c", BROKEN, "fuzz"],
    )  # fmt: skip
    assert done.returncode == ExitStatus.VIOLATION
    failure = json.loads(done.stdout)["failure"]
    assert failure["reproduction"] is None
    assert failure["steps"]
    assert "no reproduction was written" in done.stderr


def test_a_database_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = kvcrucible_fuzz("--database", str(tmp_path / "file"), cwd=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert "is no folder" in done.stderr
