"""``kvcrucible layout``: the published figures, refusals, and a terminal of 80 columns."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli import layout as command
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.profiles import PROFILES

#: 16 full-attention layers of 4 KV heads, as in a hybrid model of 27 B parameters.
MAIN = ("--layers", "16", "--heads", "4", "--dim", "256")
LLAMA_2_70B = ("--layers", "80", "--heads", "8", "--dim", "128")


def run(*arguments: str) -> str:
    app = typer.Typer()
    command.register(app)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def told(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_bytes_for_a_token_and_head_at_dimension_256() -> None:
    profiles = told(*MAIN)["profiles"]
    assert {name: one["bytes_per_token_and_head"] for name, one in profiles.items()} == {
        "FP32": 2048,
        "BF16": 1024,
        "INT8-G64": 528,
        "FP8-E4M3FN-row256": 516,
        "NVFP4-G16": 288,
        "K8V4": 402,
    }


def test_main_of_a_27b_model() -> None:
    profiles = told(*MAIN)["profiles"]
    bf16, int8 = profiles["BF16"], profiles["INT8-G64"]
    assert (bf16["bytes_per_token"], bf16["bytes_per_page_group"]) == (65_536, 4 << 20)
    assert (int8["bytes_per_token"], int8["bytes_per_page_group"]) == (33_792, int(2.0625 * (1 << 20)))
    assert (bf16["tokens_per_gib"], bf16["pages"]) == (16_384, 256)
    assert bf16["tail_slack_worst_bytes"] == 63 * 65_536
    assert bf16["tail_slack_mean_bytes"] == 63 * 65_536 / 2


def test_planes_add_up_to_what_the_profile_takes() -> None:
    for one in told(*MAIN, "--page-size", "16")["profiles"].values():
        for figure in ("bytes_per_token_and_head", "bytes_per_token", "bytes_per_page_group"):
            assert sum(plane[figure] for plane in one["planes"]) == one[figure]
        assert one["bytes_per_page_group"] == 16 * one["bytes_per_token"]


def test_llama_2_70b_at_one_budget() -> None:
    answer = told(*LLAMA_2_70B, "--budget-bytes", str(1 << 40))
    assert answer["profiles"]["BF16"]["bytes_per_token"] == 327_680
    pages = {name: one["pages"] for name, one in answer["profiles"].items()}
    assert round(pages["NVFP4-G16"] / pages["BF16"], 2) == 3.56
    assert round(pages["NVFP4-G16"] / pages["INT8-G64"], 2) == 1.83
    assert set(answer["refused"]) == {"FP8-E4M3FN-row256", "K8V4"}
    assert "groups of 256" in answer["refused"]["K8V4"]


def test_block_tables_are_int32_whatever_the_profile() -> None:
    assert told(*MAIN, "--context", "1000", "--concurrency", "3")["block_table_bytes"] == 3 * 16 * 4


def test_one_profile_is_shown_plane_by_plane() -> None:
    shown = run(*MAIN, "--profile", "INT8-G64")
    for figure in ("k_scale", "33,792", "2.0625 MiB", "2,162,688", "tokens per GiB: 31,744"):
        assert figure in shown


def test_tables_fit_a_terminal_of_80_columns() -> None:
    shown = run(*LLAMA_2_70B)
    assert "…" not in shown
    for figure in ("327,680", "10.3125 MiB", "3.56", "K8V4: groups of 256"):
        assert figure in shown
    assert all(name in run(*MAIN) for name in PROFILES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*MAIN, "--page-size", "48"), "power of two"),
        ((*MAIN, "--profile", "FP7"), "no storage profile is called 'FP7'"),
        ((*LLAMA_2_70B, "--profile", "K8V4"), "groups of 256"),
        ((*MAIN, "--concurrency", "0"), "concurrency 0"),
        ((*MAIN, "--budget-bytes", "0"), "budget of 0"),
        ((*MAIN, "--budget-bytes", "1" + "0" * 400), f"budget of more than {1 << 60}"),
        (("--layers", "1", "--heads", "1", "--dim", "7", "--profile", "NVFP4-G16"), "multiple of 16"),
        (("--layers", "0", "--heads", "4", "--dim", "256"), "layers"),
        (("--layers", str(1 << 40), "--heads", "4", "--dim", "256"), "layers 1099511627776"),
    ],
)
def test_what_makes_no_sense_is_an_input_error(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(*arguments)
