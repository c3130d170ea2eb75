"""The arena study by hand-made loads, and its command.

Verifies: what counts as a geometry refusal and as lost to shape, that a continued sequence comes back before the next
one goes, which request continues which, that figures repeat.  Does not verify: the published figures, which need the
recorded traces (``kvcrucible arena``).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from kvcrucible.cli import arena as command
from kvcrucible.contract.errors import InputError
from kvcrucible.engine.host.policies import DEFAULT_POLICY, POLICIES
from kvcrucible.perf.arena_study import Demotion, capacity_bytes, demotions, page_bytes, replay, study
from kvcrucible.perf.traces import TraceRequest, synthetic_trace, write_trace

GROUP = sum(page_bytes())


def load(*steps: tuple[int, int | None]) -> list[Demotion]:
    return [Demotion(pages, continues) for pages, continues in steps]


def request(number: int, prompt: int, **fields: object) -> TraceRequest:
    values = {
        "arrival_s": float(number),
        "output_tokens": 1,
        "block_ids": None,
        "block_size": None,
        "parent": None,
    }
    return TraceRequest(id=number, prompt_tokens=prompt, **(values | fields))  # type: ignore[arg-type]


def test_pages_cost_what_the_profile_says() -> None:
    assert page_bytes() == (4 * 2**20, 2**18)


@pytest.mark.parametrize("policy", POLICIES)
def test_enough_bytes_in_two_holes_are_a_geometry_refusal(policy: str) -> None:
    """The first comes back and leaves a hole of one page, the third one of two: three pages do not fit until the second
    has gone, which lay between them.
    """
    figures = replay(load((2, None), (2, None), (2, None), (2, None), (1, 0), (3, 2)), 8 * GROUP, policy)
    assert (figures.refused, figures.geometry_refusals, figures.lost_to_shape) == (1, 1, 1)
    assert figures.geometry_refusal_rate == 1 / 6


def test_what_fits_leaves_no_figures_and_what_never_can_is_left_out() -> None:
    figures = replay(load((2, None), (9, None), (2, 0)), 4 * GROUP, DEFAULT_POLICY)
    assert (figures.demoted, figures.too_large, figures.refused, figures.released) == (2, 1, 0, 0)
    assert figures.external_fragmentation is None
    assert figures.used is None


def test_the_oldest_goes_first_and_one_that_came_back_is_not_released_again() -> None:
    figures = replay(load((2, None), (2, None), (2, 0), (2, 0), (4, None)), 4 * GROUP, DEFAULT_POLICY)
    assert (figures.refused, figures.released) == (2, 3)
    assert figures.lost_to_shape == 0
    assert figures.used == 1.0


def test_parents_count_where_the_trace_names_them() -> None:
    blocks = {"block_ids": (1, 2), "block_size": 64}
    requests = [
        request(2, 128, parent=0, **blocks),
        request(0, 100, **blocks),
        request(1, 100, **blocks),
        request(3, 1, parent=99),
    ]
    assert demotions(requests, 0) == load((2, None), (2, None), (3, 0), (1, None))


def test_without_parents_whole_blocks_count_and_one_alone_does_not() -> None:
    def blocks(*ids: int) -> dict[str, object]:
        return {"block_ids": ids, "block_size": 64}

    requests = [
        request(0, 64, **blocks(1)),
        request(1, 130, **blocks(1, 2, 3)),
        request(2, 64, **blocks(1)),
        request(3, 200, **blocks(1, 2, 4, 5)),
        request(4, 128, **blocks(1, 2)),
        request(5, 192, **blocks(1, 2, 4)),
    ]
    assert [demotion.continues for demotion in demotions(requests, 0)] == [None, None, None, 1, 1, 3]


def test_where_nothing_is_said_restores_are_drawn_the_same_each_time() -> None:
    requests = [request(number, 50) for number in range(200)]
    drawn = [demotion.continues for demotion in demotions(requests, 1)]
    assert drawn == [demotion.continues for demotion in demotions(requests, 1)]
    assert drawn != [demotion.continues for demotion in demotions(requests, 2)]
    assert 60 < sum(one is not None for one in drawn) < 140
    assert all(one is None or one < number for number, one in enumerate(drawn))


def test_every_policy_is_studied_and_the_default_is_among_the_best_on_a_synthetic_load() -> None:
    steps = demotions(synthetic_trace(0, 1_500), 0)
    figures = {one.policy: one for one in study(steps, capacity_bytes(steps, 32))}
    assert list(figures) == list(POLICIES)
    assert (
        figures[DEFAULT_POLICY].geometry_refusals
        == min(one.geometry_refusals for one in figures.values())
        > 0
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    app = typer.Typer()
    command.register(app)
    app(["--limit", "300", *arguments], standalone_mode=False)
    return capsys.readouterr().out


def test_the_command_tells_the_same_in_json_and_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a[red]trace"
    write_trace(path, synthetic_trace(3, 300))
    told = json.loads(run(capsys, "--seed", "3", "--json"))
    assert told["requests"] == 300
    recorded = json.loads(run(capsys, "--trace", str(path), "--json"))
    assert recorded["policies"] == told["policies"]
    assert recorded["source"] == "a[red]trace"
    assert list(told["policies"]) == sorted(POLICIES)
    shown = run(capsys, "--trace", str(path))
    assert "a[red]trace: 300 requests" in " ".join(shown.split())
    assert (
        json.loads(run(capsys, "--residents", "8", "--json"))["capacity_bytes"] * 3 < told["capacity_bytes"]
    )


def test_a_study_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="no request"):
        demotions([], 0)
    with pytest.raises(InputError, match="use 1 or more"):
        run(capsys, "--residents", "0")
