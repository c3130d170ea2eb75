"""Rounds of speculation by hand: what is accepted is committed, what is not is trimmed in each pool (decision 0023)."""

from __future__ import annotations

import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import BadArgument, LimitExceeded, Refusal, StaleHandle
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.speculation import lead
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import snapshot

PROMPT = 6


def engine(backend: str | None = None, limit: int = 24) -> tuple[Engine, int]:
    """Return an engine with pages of 4 tokens (2 in the backend), and a sequence whose prompt of 6 is complete."""
    pools = [PoolSpec("main", 8, 4)] + ([] if backend is None else [PoolSpec(backend, 16, 2)])
    e = Engine(EngineConfig(tuple(pools), 32, 2))
    sequence = e.submit(run(0, 0, PROMPT), limit - PROMPT)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, PROMPT)]))
    return e, sequence


def round_of(e: Engine, sequence: int, drafted: int, accepted: int, backend: int | None = None) -> None:
    unit = e.begin_unit([Append(sequence, run(1, 0, drafted), backend)])
    e.end_unit(unit, accepted=[(sequence, accepted)])


def frontiers(e: Engine, sequence: int) -> list[int]:
    return [space.frontier for space in e.sequences[sequence].spaces]


@pytest.mark.parametrize(("accepted", "pages"), [(1, 2), (2, 2), (3, 3), (6, 3), (7, 4), (8, 4)])
def test_what_is_not_accepted_gives_whole_pages_back(accepted: int, pages: int) -> None:
    e, sequence = engine()
    whole = e.sequences[sequence].entitlement[0]
    round_of(e, sequence, 8, accepted)
    assert frontiers(e, sequence) == [PROMPT + accepted]
    assert counters(e) == ((pages, whole - pages, 8 - whole),)
    assert (e.work.tokens_rejected, e.work.pages_trimmed) == (8 - accepted, 4 - pages)
    assert e.sequences[sequence].committed_tokens == run(0, 0, PROMPT) + run(1, 0, accepted)
    row = e.sequences[sequence].row
    assert len(snapshot(e).rows[0, row].entries) == pages


def test_the_next_append_goes_on_where_the_round_was_cut() -> None:
    e, sequence = engine()
    round_of(e, sequence, 8, 3)
    e.end_unit(e.begin_unit([Append(sequence, run(2, 0, 2))]))
    assert e.sequences[sequence].committed_tokens == run(0, 0, 6) + run(1, 0, 3) + run(2, 0, 2)


def test_rejected_tokens_are_never_found() -> None:
    e, sequence = engine()
    round_of(e, sequence, 8, 3)
    e.checkpoint(sequence)
    hit = e.lookup(run(0, 0, 6) + run(1, 0, 8))
    assert hit is not None
    assert hit.length == 9


def test_mtp_leads_inside_the_round_and_is_cut_to_main() -> None:
    e, sequence = engine("mtp")
    unit = e.begin_unit([Append(sequence, run(1, 0, 4), backend=9)])
    seen = snapshot(e)
    assert [seen.spaces[sequence, pool].provisional for pool in (0, 1)] == [10, 15]
    assert [seen.spaces[sequence, pool].frontier for pool in (0, 1)] == [6, 6]
    assert [leased for leased, _, _ in counters(e)] == [3, 8]
    e.end_unit(unit, accepted=[(sequence, 3)])
    assert frontiers(e, sequence) == [9, 9]
    assert counters(e) == ((3, 3, 2), (5, 7, 4))
    assert (e.work.tokens_written, e.work.backend_tokens_written) == (9, 9)


def test_a_lead_is_cut_where_everything_is_accepted() -> None:
    e, sequence = engine("mtp")
    e.end_unit(e.begin_unit([Append(sequence, run(1, 0, 1), backend=4)]))
    assert frontiers(e, sequence) == [7, 7]
    assert [leased for leased, _, _ in counters(e)] == [2, 4]


@pytest.mark.parametrize("backend", ["mtp", "draft"])
def test_a_backend_that_lags_is_committed_as_far_as_it_was_written(backend: str) -> None:
    e, sequence = engine(backend)
    round_of(e, sequence, 8, 5, backend=2)
    assert frontiers(e, sequence) == [11, 8]
    e.end_unit(e.begin_unit([Append(sequence, run(2, 0, 1), backend=4)]))
    assert frontiers(e, sequence) == [12, 12]


def test_an_aborted_lead_leaves_nothing() -> None:
    e, sequence = engine("mtp")
    before = counters(e)
    e.end_unit(e.begin_unit([Append(sequence, run(1, 0, 4), backend=18)]), commit=False)
    assert counters(e) == before
    assert frontiers(e, sequence) == [6, 6]


def test_a_cancelled_row_is_dropped_whatever_was_accepted_of_it() -> None:
    e, sequence = engine("mtp")
    unit = e.begin_unit([Append(sequence, run(1, 0, 4), backend=10)])
    e.cancel(sequence)
    assert e.end_unit(unit, accepted=[(sequence, 2)]).cancelled == (sequence,)
    assert counters(e) == ((0, 0, 8), (0, 0, 16))


def test_a_lead_ends_at_the_limit() -> None:
    e, sequence = engine("mtp", limit=10)
    before = counters(e)
    with pytest.raises(LimitExceeded, match="4 would bring it to the sequence's limit"):
        e.begin_unit([Append(sequence, run(1, 0, 1), backend=5)])
    assert counters(e) == before
    e.end_unit(e.begin_unit([Append(sequence, run(1, 0, 1), backend=4)]))


def test_a_prompt_has_no_lead() -> None:
    e, _ = engine("mtp")
    other = e.submit(run(3, 0, 4), 0)
    e.schedule()
    with pytest.raises(BadArgument, match="where Main will stand"):
        e.begin_unit([Prefill(other, 2, backend=3)])


@pytest.mark.parametrize(
    ("accepted", "commit", "reason"),
    [
        ([(0, 0)], True, "wrote 4"),
        ([(0, 5)], True, "wrote 4"),
        ([(0, 1), (0, 1)], True, "twice"),
        ([(7, 1)], True, "selected"),
        ([(1, 1)], True, "prefills"),
        ([(0, 1)], False, "aborted"),
    ],
)
def test_what_cannot_be_accepted_changes_nothing(
    accepted: list[tuple[int, int]], commit: bool, reason: str
) -> None:
    e, sequence = engine()
    other = e.submit(run(3, 0, 4), 0)
    e.schedule()
    unit = e.begin_unit([Append(sequence, run(1, 0, 4)), Prefill(other, 4)])
    before = snapshot(e)
    with pytest.raises(Refusal, match=reason) as refused:
        e.end_unit(unit, commit, accepted)
    assert isinstance(refused.value, BadArgument)
    assert snapshot(e) == before
    e.end_unit(unit)
    with pytest.raises(StaleHandle):
        e.end_unit(unit, accepted=accepted)


@pytest.mark.parametrize(
    ("drafted", "remaining", "room", "due"), [(3, 9, 9, 3), (9, 4, 9, 3), (9, 9, 2, 2), (9, 0, 9, 0)]
)
def test_each_term_bounds_the_lead(drafted: int, remaining: int, room: int, due: int) -> None:
    assert lead(drafted, remaining, room) == due
