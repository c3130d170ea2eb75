"""Judges an answer of ``kvcrucible plan`` by brute force over engines of every size, instead of by the formulas.

Verifies, of DESIGN 4.10: that the fewest pages are the smallest pools on which one sequence of the whole context runs
and every row has a page at the same time; that the most are what that many sequences of the whole context take; that an
explicit plan is the smallest that holds the tokens and an automatic one the largest that leaves the headroom; that the
pools, built, take the bytes that the plan says and admit as many whole contexts as its pages hold; that a backend that
runs ahead has room for what a round drafts.  Does not verify: speed, or that the bytes are there on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import LimitExceeded
from kvcrucible.contract.operations import Prefill
from kvcrucible.contract.planes import LEADING
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.fuzz.planning.asks import Answer, Ask, bytes_of
from kvcrucible.invariants.judgements import PREDICTED_OUTCOME
from kvcrucible.invariants.violation import Violation

ADMISSION, COMPLETION = "admission-by-count", "completion-guarantee"


def judge(question: Ask, answer: Answer) -> list[Violation]:
    """Return what is wrong with the answer; the first thing found."""
    return next(([found] for found in _violations(question, answer)), [])


def lead_pages(question: Ask) -> int:
    """Return how many pages, at most, a round's drafted positions reach beyond the page of the last committed one, over
    all rows; 0 for a backend that does not run ahead.
    """
    if question.backend not in LEADING:
        return 0
    size = question.page_size
    ahead = [
        len(
            {position // size for position in range(frontier, frontier + question.draft_tokens - 1)}
            - {(frontier - 1) // size}
        )
        for frontier in range(1, size + 1)
    ]
    return question.max_concurrency * max(ahead)


def serves(config: EngineConfig) -> bool:
    """Tell whether one sequence of the whole context runs to its end, and as many of one token as there are rows have
    a page each in every pool at the same time.
    """
    engine = Engine(config)
    try:
        whole = engine.submit(run(0, 0, config.max_context), 0)
    except LimitExceeded:
        return False
    engine.schedule()
    if whole not in engine.sequences:
        return False
    engine.end_unit(engine.begin_unit([Prefill(whole, config.max_context)]))
    engine.finish(whole, retain=False)
    for row in range(config.max_concurrency):
        engine.submit(run(1 + row, 0, 1), 0)
    engine.schedule()
    return len(engine.sequences) == config.max_concurrency


def whole_contexts(config: EngineConfig) -> tuple[int, int]:
    """Return how many sequences of the whole context are active at a time, and the pages of Main that they take."""
    engine = Engine(config)
    for row in range(config.max_concurrency):
        engine.submit(run(row, 0, config.max_context), 0)
    engine.schedule()
    return len(engine.sequences), engine.pools[0].leased + engine.pools[0].reserved


def _violations(question: Ask, answer: Answer) -> Iterator[Violation]:
    lead = lead_pages(question)

    def built(pages: int) -> EngineConfig:
        return question.config(pages, None if question.backend is None else pages + lead)

    fewest = next(pages for pages in range(1, 1 << 12) if serves(built(pages)))
    rows = question.max_concurrency
    ample = built(rows * question.max_context)
    most = whole_contexts(ample)[1]
    due = _due(question, fewest, most, built)
    if due is None or answer.plain is None:
        if due is not None:
            yield Violation(COMPLETION, f"refused, though {due} pages do: {answer.refusal}")
        elif answer.plain is not None:
            yield Violation(
                PREDICTED_OUTCOME, f"a plan of {answer.plain['main_pages']} pages, where none is due"
            )
        return
    plain = answer.plain
    if not serves(question.config(plain["main_pages"], plain["backend_pages"])):
        yield Violation(COMPLETION, f"{plain['main_pages']} pages do not serve a whole context and every row")
    for name, found, wanted in (
        ("fewest pages", plain["fewest_pages"], fewest),
        ("most pages", plain["most_pages"], most),
        ("pages of Main", plain["main_pages"], due),
        ("pages of the backend", plain["backend_pages"], None if question.backend is None else due + lead),
    ):
        if found != wanted:
            yield Violation(PREDICTED_OUTCOME, f"{name}: {found}, by brute force {wanted}")
    planned = question.config(plain["main_pages"], plain["backend_pages"])
    if plain["bytes"] != bytes_of(planned):
        yield Violation(
            PREDICTED_OUTCOME, f"{plain['bytes']} bytes; the pools, built, take {bytes_of(planned)}"
        )
    active, taken = whole_contexts(planned)
    if not taken <= plain["main_pages"] or (active < rows and taken + most // rows <= plain["main_pages"]):
        yield Violation(ADMISSION, f"{active} whole contexts of {taken} pages on {plain['main_pages']}")


def _due(question: Ask, fewest: int, most: int, built: Callable[[int], EngineConfig]) -> int | None:
    """Return how many pages of Main are due, None for a refusal."""
    if question.tokens is not None:
        if question.tokens < question.max_context:
            return None
        pages = next(n for n in range(question.tokens + 1) if n * question.page_size >= question.tokens)
        return pages if fewest <= pages <= most else None
    assert question.free_bytes is not None
    room = question.free_bytes - question.headroom
    fitting = [pages for pages in range(fewest, most + 1) if bytes_of(built(pages)) <= room]
    return max(fitting, default=None)
