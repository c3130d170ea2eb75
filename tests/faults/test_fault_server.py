"""The fork server of faults: its children end as a fresh interpreter would, and no other end passes for a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvcrucible.contract.errors import CrucibleError
from kvcrucible.fuzz.faults.catalogue import Fault, fault
from kvcrucible.fuzz.faults.run import (
    INTERRUPTED,
    SERVER,
    CampaignOptions,
    FaultRun,
    Trial,
    Verdict,
    run_trial,
    run_trials,
    trials_of,
    unchanged_trials,
)
from kvcrucible.fuzz.forking import ForkServer
from kvcrucible.fuzz.setting import Depth


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with ForkServer(SERVER) as running:
        yield running


@pytest.mark.parametrize("raw_seeds", [0, 100])
def test_a_forked_child_comes_to_what_a_fresh_interpreter_does(
    server: ForkServer, raw_seeds: int, tmp_path: Path
) -> None:
    planted = fault("share-counts-nothing")
    options = CampaignOptions(examples=60, raw_seeds=raw_seeds, out=tmp_path, shrink=raw_seeds > 0)
    trial = Trial(planted, planted.depth, options)
    forked, fresh = run_trial(trial, server), run_trial(trial)
    assert replace(forked, reproduction=None) == replace(fresh, reproduction=None)
    assert forked.verdict is Verdict.KILLED
    (control,) = unchanged_trials([planted], replace(options, examples=5, raw_seeds=min(raw_seeds, 5)))
    assert run_trial(control, server).verdict is Verdict.SURVIVED, (
        "nothing is left of what was planted before"
    )


def test_no_other_end_is_a_kill(server: ForkServer) -> None:
    planted = fault("share-counts-nothing")
    unknown = Fault(
        "made-up", "x", "kvcrucible.engine.space", "x", "y", Depth.LEDGER, ("single-writer",), (), "x"
    )
    lost = run_trial(Trial(unknown, unknown.depth, CampaignOptions()), server)
    assert lost.verdict is Verdict.LOST
    assert "unknown fault" in lost.note
    hung = run_trial(Trial(planted, planted.depth, CampaignOptions(seconds=0.001)), server)
    assert hung.verdict is Verdict.HUNG
    told = server.ask({"arguments": ["none", "--raw", "9999", "--processor-seconds", "1"], "seconds": 60.0})
    assert told["returncode"] == -signal.SIGXCPU
    assert run_trial(Trial(planted, planted.depth, CampaignOptions()), server).verdict is Verdict.KILLED


def test_a_server_that_is_gone_loses_one_trial_and_starts_again(server: ForkServer) -> None:
    planted = fault("share-counts-nothing")
    trial = Trial(planted, planted.depth, CampaignOptions(shrink=False))
    assert run_trial(trial, server).verdict is Verdict.KILLED
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    (running,) = [int(pid) for pid in children if SERVER in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(running, signal.SIGKILL)
    lost = run_trial(trial, server)
    assert (lost.verdict, lost.note) == (Verdict.LOST, "the fork server ended with status -9")
    assert run_trial(trial, server).verdict is Verdict.KILLED


def test_an_answer_that_is_none_names_how_the_server_ended() -> None:
    with ForkServer("kvcrucible.no_such_module") as server, pytest.raises(CrucibleError, match="status 1"):
        server.ask({})


def test_a_server_that_is_closed_does_not_start_again() -> None:
    with ForkServer(SERVER) as server:
        pass
    with pytest.raises(CrucibleError, match="closed"):
        server.ask({})


def test_half_an_answer_is_the_end_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_server.py").write_text("input(); print('{\"returncode\": 0', end='', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with ForkServer("half_a_server") as server, pytest.raises(CrucibleError, match="ended with status"):
        server.ask({})


def test_a_child_ends_with_whoever_asked_for_it() -> None:
    words = [sys.executable, "-m", SERVER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        request = {"arguments": ["none", "--raw", "99999"], "seconds": 600.0}
        running.stdin.write(json.dumps(request) + "\n")
        running.stdin.flush()
        family = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while not (children := family.read_text().split()):
            assert running.poll() is None
            time.sleep(0.02)
        running.stdin.close()
        assert running.wait(60) != 0
    assert not Path(f"/proc/{children[0]}").exists()


def test_many_at_a_time_come_back_in_order() -> None:
    planted = [fault("share-counts-nothing"), fault("fork-shares-tail")]
    done = run_trials(trials_of(planted, CampaignOptions(shrink=False), seeds=2), jobs=2)
    assert [(run.fault, run.seed, run.verdict) for run in done] == [
        (one.id, seed, Verdict.KILLED) for one in planted for seed in (0, 1)
    ]


def test_an_interruption_returns_what_was_through_and_ends_the_rest() -> None:
    endless = CampaignOptions(shrink=False, raw_seeds=10_000_000, seconds=600)
    trials = [
        Trial(fault("fork-shares-tail"), Depth.LEDGER, CampaignOptions(shrink=False)),
        Trial(None, Depth.LEDGER, endless),
        Trial(None, Depth.LEDGER, replace(endless, seed=1)),
    ]

    def interrupt(run: FaultRun) -> None:
        raise KeyboardInterrupt

    done = run_trials(trials, jobs=2, on_done=interrupt)
    assert [(run.verdict, run.note) for run in done] == [
        (Verdict.KILLED, ""),
        (Verdict.NOT_RUN, INTERRUPTED),
        (Verdict.NOT_RUN, INTERRUPTED),
    ]


def test_an_interruption_ends_an_interpreter_of_its_own() -> None:
    pytest.importorskip("torch")
    long = CampaignOptions(100_000, shrink=False, seconds=600)
    quick = Trial(fault("fork-shares-tail"), Depth.LEDGER, CampaignOptions(shrink=False))

    def interrupt(run: FaultRun) -> None:
        raise KeyboardInterrupt

    done = run_trials([quick, Trial(None, Depth.PAYLOAD, long)], jobs=2, on_done=interrupt)
    assert [run.note for run in done] == ["", INTERRUPTED]


def test_the_server_has_neither_the_engine_nor_a_tensor_library() -> None:
    code = (
        "import sys; import kvcrucible.fuzz.faults.server; from kvcrucible.fuzz.forking import preload; preload();"
        "print([n for n in sys.modules if n.startswith('kvcrucible.engine.') or n in ('torch', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
