"""Every option of ``kvcrucible fuzz`` in every mode: it changes what is run, or is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from kvcrucible.cli import fuzz, fuzz_campaign, fuzz_kernels, fuzz_matrix, fuzz_raw
from kvcrucible.cli.fuzz_options import BENCH, CAMPAIGN, KERNELS, MATRIX, MODES, RAW, Mode
from kvcrucible.contract.errors import ExitStatus, InputError

#: What asks for each mode; a seed, so that two runs that are asked alike are alike.
ASKED = {
    CAMPAIGN.name: (),
    MATRIX.name: ("--matrix",),
    RAW.name: ("--raw",),
    BENCH.name: ("--raw", "--bench"),
    KERNELS.name: ("--kernels",),
}

#: For each option, by the name of its parameter, a value that is not its default; none for a flag.
GIVEN: dict[str, tuple[str, ...]] = {
    "engine": ("--engine", "honest-fifo"),
    "depth": ("--depth", "ledger"),
    "pools": ("--pools", "main"),
    "profile": ("--profile", "BF16"),
    "host": ("--host", "on"),
    "device": ("--device", "cuda"),
    "capacity_at": ("--capacity-at", "L"),
    "matrix": ("--matrix",),
    "jobs": ("--jobs", "2"),
    "raw": ("--raw",),
    "seeds": ("--seeds", "7"),
    "replay_twice": ("--replay-twice",),
    "digest": ("--digest",),
    "bench": ("--bench",),
    "examples": ("--examples", "7"),
    "goals": ("--no-goals",),
    "steps": ("--steps", "7"),
    "seed": ("--seed", "7"),
    "seconds": ("--seconds", "7"),
    "out": ("--out", "elsewhere"),
    "database": ("--database", "kept"),
    "kernels": ("--kernels",),
    "backend": ("--backend", "torch"),
    "pairwise": ("--pairwise",),
    "json_output": ("--json",),
}

#: Options that ask for another mode.
SWITCHES = {"matrix", "raw", "bench", "kernels"}


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    fuzz.register(app)
    return app


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the modes were asked to run, none of which runs; the last one counts."""
    seen: list[Any] = []

    def instead(module: Any, name: str) -> None:
        def record(*arguments: Any, **options: Any) -> ExitStatus:
            seen.append((name, arguments, options))
            return ExitStatus.HELD

        monkeypatch.setattr(module, name, record)

    instead(fuzz_campaign, "campaign_and_print")
    instead(fuzz_matrix, "run_and_print")
    instead(fuzz_raw, "volume_and_print")
    instead(fuzz_raw, "bench_and_print")
    instead(fuzz_kernels, "kernels_and_print")
    return seen


def run(app: typer.Typer, asked: list[Any], *words: str) -> Any:
    """Return what was asked for, or the refusal."""
    done = CliRunner().invoke(app, ["fuzz", *words])
    if done.exception is not None:
        assert isinstance(done.exception, InputError), repr(done.exception)
        return done.exception
    return asked[-1]


def test_the_walk_knows_every_option(app: typer.Typer) -> None:
    command: Any = get_command(app)
    params = {option.name for option in command.commands["fuzz"].params}
    assert params == GIVEN.keys()
    assert {name for mode in MODES for name in mode.takes} == params
    assert ASKED.keys() == {mode.name for mode in MODES}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_an_option_changes_what_is_run_or_is_refused(mode: Mode, app: typer.Typer, asked: list[Any]) -> None:
    words = (*ASKED[mode.name], "--seed", "1")
    plain = run(app, asked, *words)
    for name, given in GIVEN.items():
        if given[0] in ASKED[mode.name]:
            continue
        found = run(app, asked, *words, *given)
        if name in SWITCHES:
            assert isinstance(found, InputError) or found[0] != plain[0]
        elif name in mode.takes:
            assert found != plain, f"{mode.name} takes {given[0]} and makes nothing of it"
        else:
            assert isinstance(found, InputError), f"{mode.name} passes over {given[0]}"
            assert f"{mode.name} does not take {given[0]} (of " in str(found)


def test_a_refusal_says_which_mode_an_option_is_of(app: typer.Typer, asked: list[Any]) -> None:
    refused = run(app, asked, "--seeds", "5", "--jobs", "2")
    assert str(refused) == (
        "a plain campaign does not take --jobs (of --matrix, --raw), --seeds (of --raw); leave them out"
    )
    assert "--bench (of --raw --bench); leave it out" in str(run(app, asked, "--bench"))
    bench = str(run(app, asked, "--raw", "--bench", "--seconds", "9"))
    assert (
        bench
        == "--raw --bench does not take --seconds (of a plain campaign, --raw alone, --kernels); leave it out"
    )
    assert "--raw does not take --matrix" in str(run(app, asked, "--raw", "--matrix"))


def test_an_option_that_repeats_a_default_is_refused_all_the_same(app: typer.Typer, asked: list[Any]) -> None:
    assert isinstance(run(app, asked, "--jobs", "1"), InputError)
    assert isinstance(run(app, asked, "--kernels", "--steps", "60"), InputError)


def test_pairs_of_values_are_asked_of_the_kernels(app: typer.Typer, asked: list[Any]) -> None:
    assert not run(app, asked, "--kernels")[1][1].pairwise
    backend, plan, out = run(app, asked, "--kernels", "--backend", "interpreter", "--pairwise")[1]
    assert (backend, plan.pairwise, out) == ("interpreter", True, Path("results/failures"))
