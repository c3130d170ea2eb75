"""``kvcrucible fuzz --raw`` as people run it: exit statuses, JSON, options that do not go together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvcrucible.cli.fuzz_raw import words_for
from kvcrucible.contract.errors import ExitStatus
from kvcrucible.fuzz.volume import VolumePlan


def fuzz(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvcrucible", "fuzz", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=cwd)


def test_seeds_that_hold_end_with_their_figures(tmp_path: Path) -> None:
    done = fuzz("--raw", "--seeds", "4", "--seed", "9", "--digest", cwd=tmp_path)
    assert done.returncode == ExitStatus.HELD, done.stderr
    shown = " ".join(done.stdout.split())
    for part in ("operations by kind", "4 seeds from 9", "0.75 of this generator's seeds", "(3/n)", "digest"):
        assert part in shown
    assert list(tmp_path.iterdir()) == []
    again = json.loads(
        fuzz("--raw", "--seeds", "4", "--seed", "9", "--digest", "--json", cwd=tmp_path).stdout
    )
    assert again["format"] == "kvcrucible.fuzz-volume/1"
    assert f"digest {again['digest']}" in shown


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--raw", "--examples", "3"), "--examples"),
        (("--raw", "--depth", "payload"), "--depth"),
        (("--raw", "--matrix"), "--matrix"),
        (("--raw", "--device", "cuda"), "--device"),
        (("--kernels", "--raw"), "--raw"),
        (("--kernels", "--seeds", "3"), "--seeds"),
        (("--raw", "--bench", "--digest"), "--digest"),
        (("--seeds", "3"), "--seeds"),
        (("--replay-twice",), "--replay-twice"),
        (("--raw", "--engine", "no-such"), "no-such"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(
    arguments: tuple[str, ...], names: str, tmp_path: Path
) -> None:
    done = fuzz(*arguments, cwd=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert names in done.stderr
    assert done.stdout == ""


def test_the_words_for_a_failing_seed_name_all_that_it_was_drawn_from() -> None:
    assert words_for(VolumePlan(), 7) == "--raw --seed 7 --seeds 1"
    plan = VolumePlan(rules=20, backends=("mtp",), hosts=(False,))
    assert words_for(plan, 7) == "--raw --seed 7 --seeds 1 --steps 20 --pools main+mtp --host off"


def test_an_engine_without_ledger_depth_is_not_run(tmp_path: Path) -> None:
    done = fuzz("--raw", "--engine", "torch-paged-attention", "--seeds", "1", cwd=tmp_path)
    assert done.returncode == ExitStatus.NOT_RUN
    assert "ledger depth" in done.stderr
