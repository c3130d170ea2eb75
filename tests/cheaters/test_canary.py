"""The canary fails in every stage; a stage in which it passes, or in which everybody fails, is void."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli import judge as command
from kvcrucible.contract.errors import ExitStatus, InputError, NotRunError
from kvcrucible.fuzz.canary import stages
from kvcrucible.fuzz.canary.stages import STAGES, Verdict, run_stage

#: What each stage has to find in the canary.
FINDS = {
    "ledger": "pool-conservation",
    "raw": "pool-conservation",
    "payload": "no-stale-read",
    "kernels": "kernel-oracle",
    "history": "counters",
    "nth-failure": "refusal-atomic",
}


def test_every_stage_has_its_canary() -> None:
    assert set(FINDS) == set(STAGES)


@pytest.mark.parametrize("name", ["ledger", "raw", "history", "nth-failure"])
def test_the_canary_fails(name: str) -> None:
    done = run_stage(name)
    assert done.verdict is Verdict.FAILED
    assert FINDS[name] in done.note


@pytest.mark.parametrize("name", ["payload", "kernels"])
def test_the_canary_fails_over_tensors(name: str) -> None:
    pytest.importorskip("torch")
    done = run_stage(name)
    assert done.verdict is Verdict.FAILED
    assert FINDS[name] in done.note


def blind(canary: bool) -> str | None:
    return None


def condemning(canary: bool) -> str | None:
    return "something"


def crashing(canary: bool) -> str | None:
    return "engine-fault: snapshot raised AttributeError" if canary else None


def absent(canary: bool) -> str | None:
    raise NotRunError("no torch here")


@pytest.mark.parametrize(
    ("stage", "verdict", "status"),
    [
        (blind, Verdict.PASSED, ExitStatus.VIOLATION),
        (condemning, Verdict.CONDEMNS_ALL, ExitStatus.VIOLATION),
        (crashing, Verdict.CRASHED, ExitStatus.VIOLATION),
        (absent, Verdict.NOT_RUN, ExitStatus.NOT_RUN),
    ],
)
def test_a_stage_that_sees_nothing_or_condemns_all_is_void(
    stage: stages.Stage, verdict: Verdict, status: ExitStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES, "history", stage)
    assert run_stage("history").verdict is verdict
    app = typer.Typer()
    command.register(app)
    shown = CliRunner().invoke(app, ["judge", "canary", "history", "--json"])
    assert shown.exit_code == status
    assert json.loads(shown.output)["stages"][0]["void"] is (status is ExitStatus.VIOLATION)


def test_an_unknown_stage_is_refused() -> None:
    app = typer.Typer()
    command.register(app)
    found = CliRunner().invoke(app, ["judge", "canary", "none"])
    assert isinstance(found.exception, InputError)
