"""``kvcrucible fuzz --raw`` as people run it: exit statuses, JSON, options that do not go together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kvcrucible.cli import fuzz as fuzz_command
from kvcrucible.cli.fuzz_raw import words_for
from kvcrucible.contract.errors import ExitStatus, NotRunError
from kvcrucible.fuzz import rates
from kvcrucible.fuzz.adapters.registry import ENGINES, depths_of
from kvcrucible.fuzz.cheaters.registry import JUDGES_OWN
from kvcrucible.fuzz.setting import Depth
from kvcrucible.fuzz.volume import VolumePlan, conditions_of


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


def here(*arguments: str) -> Result:
    """Run the command in this process."""
    app = typer.Typer()
    app.callback()(lambda: None)
    fuzz_command.register(app)
    return CliRunner().invoke(app, ["fuzz", "--raw", "--seed", "0", *arguments])


@pytest.mark.parametrize("engine", [*ENGINES, *JUDGES_OWN])
def test_every_engine_that_is_known_runs_raw_or_has_nothing_to_show_there(engine: str) -> None:
    if Depth.LEDGER in depths_of(engine):
        assert conditions_of(VolumePlan(engine)).capabilities.operations
    else:
        with pytest.raises(NotRunError, match="payload depth alone"):
            conditions_of(VolumePlan(engine))


def test_engines_of_the_judge_are_taken_by_name(tmp_path: Path) -> None:
    assert here("--engine", "honest-fifo", "--seeds", "1", "--steps", "10").exit_code == ExitStatus.HELD
    told = here("--engine", "canary", "--seeds", "1", "--steps", "10", "--out", str(tmp_path))
    assert told.exit_code == ExitStatus.VIOLATION
    assert "engine canary" in " ".join(told.output.split())


def test_what_fails_while_it_is_timed_is_a_violation_with_its_reproduction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcrucible.fuzz.campaign.keep_out_of_the_working_folder", lambda: None)
    words = ("--bench", "--engine", "canary", "--steps", "8", "--out", str(tmp_path))
    done = here(*words, "--json")
    assert done.exit_code == ExitStatus.VIOLATION
    plain = json.loads(done.stdout)
    assert (plain["format"], plain["failed"]) == ("kvcrucible.fuzz-rates-failed/1", "raw, round 1")
    (written,) = tmp_path.glob("test_*.py")
    assert plain["failure"]["reproduction"] == str(written)
    assert "'engine': 'canary'" in written.read_text("utf-8")
    shown = " ".join(here(*words).stdout.split())
    assert "VIOLATION: raw, round 1; nothing was measured; engine canary, seed 0" in shown


def test_an_interruption_of_hypothesis_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: rates.campaign.Plan) -> rates.campaign.Report:
        return rates.campaign.Report(plan, conditions_of(VolumePlan()).capabilities, cut_short="interrupted")

    monkeypatch.setattr(rates.campaign, "run", interrupted)
    monkeypatch.setattr(rates, "KINDS", ("hypothesis",))
    with pytest.raises(KeyboardInterrupt):
        rates.measure(VolumePlan(), rounds=1)
