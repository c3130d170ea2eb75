"""The launch table: every call finds its configuration, and one that cannot be meant is refused."""

from __future__ import annotations

import ast
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.contract.errors import InputError, NotRunError

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CONFIG = {"lines": 16, "tile": 64, "num_warps": 4, "num_stages": 2, "most_splits": 16, "split_tokens": 256}


def parsed(match: dict[str, Any] | None = None, **changes: Any) -> Any:
    from kvcrucible.engine.kernels.triton import launch

    return launch.parse(
        {"format": launch.FORMAT, "rules": [{"match": match or {}, "config": CONFIG | changes}]}
    )


def test_every_call_finds_a_configuration() -> None:
    from kvcrucible.engine.kernels.triton import launch

    targets = ("interpreter", "sm_80", "sm_90", "sm_100", "gfx942", "sm_999")
    for target, dim, group, length in product(
        targets, (8, 64, 80, 128, 256), (1, 5, 64), launch.LENGTH_CLASSES
    ):
        chosen = launch.config(launch.Key(target, "float32", dim, group, length))
        if length != "prefill":
            assert chosen.lines >= launch.DECODE_LINES, "a decode entry is one block"


def test_every_rule_is_the_first_for_some_key() -> None:
    """A misspelt value matches nothing and leaves no other trace."""
    from kvcrucible.contract.profiles import PROFILES
    from kvcrucible.engine.kernels.triton import launch, tune

    keys = [
        key
        for target in ("interpreter", "sm_80", "sm_90", "sm_100", "gfx942")
        for key in tune.keys_of(target, PROFILES, (16, 32, 64, 80, 96, 112, 128, 256), (1, 8))
    ]
    rules = launch.table()
    first = {
        next(
            index
            for index, (match, _) in enumerate(rules)
            if all(getattr(key, field) in values for field, values in match.items())
        )
        for key in keys
    }
    assert first == set(range(len(rules)))


def test_the_first_rule_that_matches_wins() -> None:
    rules = parsed({"target": ["sm_90"], "length": ["prefill"]})
    assert rules[0][0] == {"target": ("sm_90",), "length": ("prefill",)}


@pytest.mark.parametrize(
    "changes", [{"lines": 8}, {"lines": 24}, {"tile": 8}, {"tile": 256}, {"num_warps": 3}, {"most_splits": 0}]
)
def test_a_configuration_that_no_kernel_runs_with_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InputError):
        parsed(**changes)


@pytest.mark.parametrize("match", [{"gpu": ["sm_90"]}, {"length": ["decode"]}])
def test_a_rule_that_matches_on_what_is_not_there_is_refused(match: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="matches on"):
        parsed(match)


def test_the_class_of_an_entry_follows_from_its_own_numbers() -> None:
    from kvcrucible.engine.kernels.triton.launch import length_class

    assert length_class(1, 16, 2047) == "decode-short"
    assert length_class(4, 4, 2048) == "decode-long"
    assert length_class(17, 1, 17) == "prefill"


def test_the_fuzzer_counts_the_smallest_tile_of_the_table() -> None:
    from kvcrucible.engine.kernels.triton import launch
    from kvcrucible.fuzz.kernels.backends import smallest_tile

    assert smallest_tile("triton", 1024) == min(chosen.tile for _, chosen in launch.table())


def test_kernels_address_pages_in_64_bits(repository: Path) -> None:
    """A pool may have more elements than 32 bits count: every page id that is loaded is widened before it is used."""
    source = (repository / "src/kvcrucible/engine/kernels/triton/attention.py").read_text("utf-8")
    loads = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "page"
    ]
    assert [ast.unparse(node.value).endswith(".to(tl.int64)") for node in loads] == [True]


def test_a_table_is_remade_by_time_and_keeps_its_other_rules() -> None:
    from kvcrucible.engine.kernels.triton import launch, tune

    keys = [launch.Key("sm_90", "bfloat16", 128, 4, length) for length in ("decode-long", "prefill")]

    def seconds(key: Any, chosen: Any) -> float | None:
        if chosen.num_stages == 3 and key.length == "prefill":
            return None
        return 1.0 if chosen.num_warps == 8 and chosen.tile == 64 else 2.0

    table = json.loads(tune.to_text(tune.tune(keys, seconds)))
    decode, prefill, *rest = launch.parse(table)
    assert (decode[1].num_warps, decode[1].tile, decode[1].lines) == (8, 64, launch.DECODE_LINES)
    assert (prefill[1].num_warps, prefill[1].num_stages) == (8, 2)
    assert tuple(rest) == launch.table()


def test_noise_does_not_change_a_choice() -> None:
    from kvcrucible.engine.kernels.triton import launch, tune

    present, other = launch.Config(16, 64, 4, 2, 16, 256), launch.Config(16, 64, 8, 2, 16, 256)
    assert tune.choose(present, {present: 1.0, other: 0.99}) == present
    assert tune.choose(present, {present: 1.0, other: 0.9}) == other
    assert tune.choose(present, {other: 5.0}) == other
    assert tune.choose(present, {}) == present


def test_tuning_without_a_device_is_not_run() -> None:
    import torch

    from kvcrucible.engine.kernels.triton import tune

    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(NotRunError, match="no device"):
        tune.device_keys(["BF16"], [128], [4])
