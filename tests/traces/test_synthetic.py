"""Synthetic traces are reproducible, share prefixes as they say, and survive being written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces import TraceRequest, open_trace, synthetic_trace, write_trace


def test_the_same_arguments_give_the_same_trace() -> None:
    assert list(synthetic_trace(3, 200)) == list(synthetic_trace(3, 200))
    assert list(synthetic_trace(3, 200)) != list(synthetic_trace(4, 200))
    # A longer trace begins with the shorter one.
    assert list(synthetic_trace(3, 200))[:50] == list(synthetic_trace(3, 50))


@pytest.mark.parametrize("compress", [False, True])
def test_a_written_trace_reads_back(tmp_path: Path, compress: bool) -> None:
    requests = list(synthetic_trace(3, 200, block_size=16))
    for name in ("a", "b"):
        write_trace(tmp_path / name, requests, compress=compress)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with open_trace(tmp_path / "a") as trace:
        assert trace.info.is_gzip == compress
        assert list(trace) == requests


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="mine: cannot be written"):
        write_trace(tmp_path / "mine", synthetic_trace(0, 1))
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize(("block_size", "system_tokens"), [(16, 100), (64, 512), (64, 0), (512, 100)])
def test_the_shape_is_as_described(block_size: int, system_tokens: int) -> None:
    made = synthetic_trace(
        1,
        500,
        block_size=block_size,
        system_prompts=3,
        system_tokens=system_tokens,
        max_prompt_tokens=2_000,
    )
    earlier: dict[int, TraceRequest] = {}
    system_blocks = system_tokens // block_size
    systems: set[tuple[int, ...]] = set()
    prefix_of: dict[int, tuple[int, ...]] = {}
    arrival_s = 0.0
    for ordinal, request in enumerate(made):
        assert request.id == ordinal
        assert request.arrival_s >= arrival_s
        assert 1 <= request.prompt_tokens <= 2_000
        assert request.output_tokens >= 1
        ids = request.block_ids
        assert ids is not None
        assert len(ids) == -(-request.prompt_tokens // block_size)
        systems.add(ids[:system_blocks])
        for place, block in enumerate(ids):
            # One id, one prefix: what the ids of a trace promise.
            assert prefix_of.setdefault(block, ids[: place + 1]) == ids[: place + 1]
        if request.parent is not None:
            assert isinstance(request.parent, int)
            parent = earlier[request.parent]
            whole = parent.prompt_tokens // block_size
            assert parent.block_ids is not None
            assert ids[:whole] == parent.block_ids[:whole]
            # The block that the parent had only begun is another one now that it is longer.
            assert not set(ids) & set(parent.block_ids[whole:])
            assert request.prompt_tokens > parent.prompt_tokens + parent.output_tokens
        earlier[ordinal] = request
        arrival_s = request.arrival_s
    assert len(systems) == (3 if system_blocks else 1)
    assert sum(request.parent is not None for request in earlier.values()) > 100


@pytest.mark.parametrize(
    "arguments",
    [
        {"requests": 0},
        {"block_size": 0},
        {"system_prompts": 0},
        {"system_tokens": -1},
        {"max_prompt_tokens": 0},
        {"seed": -1},
    ],
)
def test_a_number_out_of_range_is_refused_at_once(arguments: dict[str, int]) -> None:
    with pytest.raises(InputError, match="synthetic trace"):
        synthetic_trace(**({"seed": 0, "requests": 1} | arguments))


def test_prompts_of_one_token_are_possible() -> None:
    assert {r.prompt_tokens for r in synthetic_trace(0, 20, max_prompt_tokens=1)} == {1}
