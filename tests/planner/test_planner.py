"""The capacity planner: figures by hand, properties, refusals, and the command (DESIGN 4.10)."""

from __future__ import annotations

import json

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from kvcrucible.cli import plan as plan_command
from kvcrucible.contract.errors import InputError
from kvcrucible.perf.planner import Demand, plan_automatic, plan_explicit

#: S = 1000, C = 4, P = 64: L = 16, M_min = 16, M_max = 64.
PLAIN = Demand(1000, 4, 64, page_bytes=10_000)


def test_bounds_by_hand() -> None:
    assert (PLAIN.blocks, PLAIN.fewest_pages, PLAIN.most_pages) == (16, 16, 64)
    assert PLAIN.table_bytes == 4 * 16 * 4
    assert (PLAIN.step_bytes, PLAIN.fewest_bytes) == (10_000, 160_256)
    rows = Demand(64, 30, 64, page_bytes=1)
    assert (rows.blocks, rows.fewest_pages, rows.most_pages) == (1, 30, 30)


@pytest.mark.parametrize(("tokens", "pages"), [(1000, 16), (1024, 16), (1025, 17), (2000, 32), (4096, 64)])
def test_explicit_by_hand(tokens: int, pages: int) -> None:
    plan = plan_explicit(PLAIN, tokens)
    assert (plan.main_pages, plan.backend_pages, plan.tokens) == (pages, None, pages * 64)
    assert plan.bytes == pages * 10_000 + 256


@pytest.mark.parametrize(
    ("free", "headroom", "pages"),
    [
        (160_256, 0, 16),
        (170_255, 0, 16),
        (170_256, 0, 17),
        (200_256, 30_000, 17),
        (640_256, 0, 64),
        (10**12, 0, 64),
    ],
)
def test_automatic_by_hand(free: int, headroom: int, pages: int) -> None:
    assert plan_automatic(PLAIN, free, headroom).main_pages == pages


def test_backends_by_hand() -> None:
    """K_draft = 66 at P = 64: ceil(65 / 64) = 2 pages a row ahead; a Draft pool is as large as Main."""
    mtp = Demand(1000, 4, 64, 10_000, "mtp", 500, draft_tokens=66)
    assert (mtp.lead_pages, mtp.step_bytes) == (8, 10_500)
    assert mtp.fewest_bytes == 16 * 10_500 + 8 * 500 + 2 * 256
    plan = plan_automatic(mtp, mtp.fewest_bytes + 3 * 10_500 + 10_499)
    assert (plan.main_pages, plan.backend_pages) == (19, 27)
    for draft_tokens, lead in ((1, 0), (2, 4), (65, 4)):
        assert Demand(1000, 4, 64, 10_000, "mtp", 500, draft_tokens).lead_pages == lead
    draft = plan_explicit(Demand(1000, 4, 64, 10_000, "draft", 500, draft_tokens=66), 1025)
    assert (draft.main_pages, draft.backend_pages) == (17, 17)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (999, "one sequence can have 1000"),
        (4097, "at most 4096 tokens"),
        (0, "one sequence"),
        (-5, "one sequence"),
    ],
)
def test_explicit_refusals(tokens: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_explicit(PLAIN, tokens)


def test_explicit_refuses_fewer_pages_than_rows() -> None:
    with pytest.raises(InputError, match="30 rows need a page each; give at least 1920 tokens"):
        plan_explicit(Demand(64, 30, 64, 1), 64)


def test_automatic_refusals() -> None:
    with pytest.raises(InputError, match="16 pages, the fewest, take 160256; 1 are lacking"):
        plan_automatic(PLAIN, 160_255)
    with pytest.raises(InputError, match="1 are lacking"):
        plan_automatic(PLAIN, 170_255, 10_000)
    for free, headroom in ((-1, 0), (10**9, -1)):
        with pytest.raises(InputError, match="give 0 or more"):
            plan_automatic(PLAIN, free, headroom)


def test_pools_that_no_block_table_could_name_are_refused() -> None:
    with pytest.raises(InputError, match="use larger pages"):
        plan_explicit(Demand(2**31, 1, 1, 1), 2**31)


@pytest.mark.parametrize(
    "numbers",
    [
        (0, 1, 64, 1),
        (1, 0, 64, 1),
        (1, 1, 48, 1),
        (1, 1, 64, 0),
        (1, 1, 64, 1, "eagle", 5),
        (1, 1, 64, 1, "mtp", 0),
        (1, 1, 64, 1, None, 5),
        (1, 1, 64, 1, "mtp", 5, 0),
        (2**33, 1, 64, 1),
    ],
)
def test_demands_that_make_no_sense_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        Demand(*numbers)  # type: ignore[arg-type]


DEMANDS = st.builds(
    lambda context, rows, log_page, page, backend, own, draft: Demand(
        context, rows, 1 << log_page, page, backend, own if backend else 0, draft
    ),
    st.integers(1, 5000),
    st.integers(1, 40),
    st.integers(0, 8),
    st.integers(1, 10**6),
    st.sampled_from([None, "mtp", "draft"]),
    st.integers(1, 10**5),
    st.integers(1, 300),
)


@given(DEMANDS, st.integers(0, 10**11), st.integers(0, 10**9))
def test_an_automatic_plan_is_the_largest_that_leaves_the_headroom(
    demand: Demand, free: int, headroom: int
) -> None:
    try:
        plan = plan_automatic(demand, free, headroom)
    except InputError:
        assert demand.fewest_bytes > free - headroom
        return
    assert demand.fewest_pages <= plan.main_pages <= demand.most_pages
    assert plan.bytes + headroom <= free
    if plan.main_pages < demand.most_pages:
        assert plan.bytes + demand.step_bytes + headroom > free


@given(DEMANDS, st.integers(1, 300_000))
def test_an_explicit_plan_costs_what_an_automatic_one_needs(demand: Demand, tokens: int) -> None:
    try:
        plan = plan_explicit(demand, tokens)
    except InputError:
        pages = -(-tokens // demand.page_size)
        assert tokens < demand.max_context or not demand.fewest_pages <= pages <= demand.most_pages
        return
    assert 0 <= plan.tokens - tokens < demand.page_size
    assert plan_automatic(demand, plan.bytes) == plan


def invoke(*arguments: object) -> Result:
    app = typer.Typer()
    plan_command.register(app)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


MODEL = ("--max-context", 1000, "--max-concurrency", 4, "--heads", 2, "--dim", 64, "--layers", 3)


def test_the_command_plans_from_a_profile() -> None:
    """BF16: 2 sides × 2 bytes × 64 × 2 heads × 3 layers × 64 tokens = 98,304 bytes a page."""
    done = invoke(*MODEL, "--tokens", 2000, "--json")
    assert done.exit_code == 0, done.output
    plain = json.loads(done.stdout)
    assert (plain["main_pages"], plain["page_bytes"], plain["bytes"]) == (32, 98_304, 32 * 98_304 + 256)
    assert (plain["fewest_pages"], plain["most_pages"]) == (16, 64)
    # A page of the MTP pool, of one layer, costs 32,768; 16 of each, 4 more for the lead of 2, two tables of 256.
    fewest = 16 * (98_304 + 32_768) + 4 * 32_768 + 512
    options = ("--headroom", 10**5, "--pools", "main+mtp", "--draft-tokens", 3, "--json")
    done = invoke(*MODEL, "--free-bytes", fewest + 10**5 + 2 * 131_072, *options)
    plain = json.loads(done.stdout)
    assert (plain["main_pages"], plain["backend_pages"], plain["fewest_bytes"]) == (18, 22, fewest)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--tokens or --free-bytes"),
        (("--tokens", 2000, "--free-bytes", 1), "--tokens or --free-bytes"),
        (("--tokens", 2000, "--headroom", 1), "--headroom goes with"),
        (("--tokens", 2000, "--pools", "draft"), "main+draft"),
        (("--tokens", 2000, "--profile", "INT3"), "INT3"),
        (("--tokens", 2000, "--page-size", 48), "power of two"),
        (("--tokens", 2000, "--profile", "FP8-E4M3FN-row256"), "256"),
        (("--tokens", 10), "one sequence can have 1000"),
    ],
)
def test_the_command_refuses_with_the_reason(options: tuple[object, ...], said: str) -> None:
    done = invoke(*MODEL, *options)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


def test_the_command_shows_bounds() -> None:
    done = invoke(*MODEL, "--tokens", 2000, "--pools", "main+draft")
    assert "main: 32 pages" in done.stdout
    assert "draft: 32 pages" in done.stdout
    assert "bounds: 16 pages" in done.stdout
