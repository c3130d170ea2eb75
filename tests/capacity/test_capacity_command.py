"""``kvcrucible capacity`` prints the figures of the study, as tables and as JSON, and refuses what makes no sense."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli.capacity import register
from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces import synthetic_trace, write_trace


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    done = CliRunner().invoke(app, ["capacity", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def figures(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json"))


def test_the_text_has_every_figure_of_the_article() -> None:
    text = re.sub(r"\s+", " ", run())
    for said in (
        "60 lengths (gauss, seed 42): sum 13,691, mean 228, longest 593",
        "budget 8,528 slots, for the first 40; 533 pages of 16",
        "static: 8 admitted, 52 refused; 1,603 of 8,192 slots held used (20 %), 19 % of the budget",
        "contiguous: 40 admitted (8,496 occupied), 20 freed; 4,810 slots free, largest hole 359; "
        "a request of 800 refused",
        "paged: 39 admitted, 20 freed; 4,768 slots free in whole pages; a request of 800 admitted (50 pages); "
        "tail waste 101 of 3,760 (2.7 %), at most 15 in one sequence",
        "97.3 % of what is held is used, 42.9 % of the budget",
        "static 8 against paged 39 (4.9 ×)",
        "Llama-2 70B",
        "327,680",
    ):
        assert said in text


def test_json_has_the_same_figures() -> None:
    told = figures()
    assert told["scenario"]["budget_slots"] == 8_528
    assert told["scenario"]["source"] == "gauss, seed 42"
    assert {name: arm["admitted"] for name, arm in told["strategies"].items()} == {
        "static": 8,
        "contiguous": 40,
        "paged": 39,
    }
    assert told["strategies"]["contiguous"]["after"]["largest_grant_slots"] == 359
    assert told["strategies"]["paged"]["after"]["waste_slots"] == 101
    assert told["storage"]["profiles"]["BF16"]["bytes_per_token"] == 327_680


def test_options_reach_the_scenario() -> None:
    told = figures("--seed", "3", "--distribution", "uniform", "--page-size", "64", "--static-max", "2048")
    scenario = told["scenario"]
    assert scenario["source"] == "uniform, seed 3"
    assert (scenario["page_size"], scenario["static_max_tokens"]) == (64, 2_048)
    assert scenario["sum_tokens"] != 13_691


def test_a_trace_brings_its_own_lengths(tmp_path: Path) -> None:
    path = tmp_path / "a[red]trace"
    requests = list(synthetic_trace(5, 30))
    write_trace(path, requests, compress=True)
    lengths = [request.prompt_tokens + request.output_tokens for request in requests]
    scenario = figures("--trace", str(path))["scenario"]
    assert (scenario["sequences"], scenario["offered"]) == (30, 20)
    assert scenario["sum_tokens"] == sum(lengths)
    assert scenario["budget_slots"] == sum(lengths[:20]) + 32
    assert figures("--trace", str(path), "--limit", "9")["scenario"]["sum_tokens"] == sum(lengths[:9])
    # The name is data: shown as it is, not as markup.
    assert "30 lengths (a[red]trace)" in run("--trace", str(path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--page-size", "17"], "page size 17"),
        (["--static-max", "0"], "static maximum 0"),
        (["--distribution", "pareto"], "gauss, uniform, lognormal, bimodal"),
        (["--limit", "5"], "--limit goes with --trace"),
        (["--trace", "absent", "--seed", "1"], "leave out --seed"),
        (["--trace", "absent", "--distribution", "gauss"], "leave out --seed"),
        (["--trace", "absent"], "absent: cannot be opened"),
    ],
)
def test_what_makes_no_sense_is_an_input_error(arguments: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(*arguments)
