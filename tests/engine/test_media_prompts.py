"""Prompts with media: where a hit ends, in the engine and in the model, whatever the hash."""

from __future__ import annotations

import re

import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import BadArgument, RefusalKind
from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Checkpoint,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Lookup,
    Operation,
    Outcome,
    Prefill,
    Schedule,
    Submit,
    Truncate,
)
from kvcrucible.contract.snapshot import from_plain, schema, to_plain
from kvcrucible.contract.tokens import Tokens, run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.observe import snapshot
from kvcrucible.reference.accounting import AccountingModel

CONFIG = EngineConfig((PoolSpec("main", 40, 4),), 40, 4)
HASHES = {"python": hash, "4 bits": lambda token: hash(token) & 15, "all equal": lambda token: 0}

#: Text, eight placeholders of one id, text.
PLACEHOLDERS: Tokens = ((0, 0, 4), *[(9, 0, 1) for _ in range(8)], (0, 4, 4))
IMAGE = TokenSpan(4, 8, "image", "d1")
KEPT: tuple[Operation, ...] = (
    Submit(PLACEHOLDERS, 8, spans=(IMAGE,)),
    Schedule(),
    BeginUnit((Prefill(0, 16),)),
    EndUnit(0),
    Checkpoint(0),
)


def take(engine: Engine, model: AccountingModel, *operations: Operation) -> Outcome:
    """Carry operations out on both; every outcome is the predicted one."""
    outcome = Outcome()
    for operation in operations:
        outcome = execute(engine, operation)
        assert outcome == model.predict(operation), operation
    return outcome


def pair(token_hash: str = "python") -> tuple[Engine, AccountingModel]:
    return Engine(CONFIG, token_hash=HASHES[token_hash]), AccountingModel(CONFIG)


@pytest.mark.parametrize("token_hash", HASHES)
@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ((IMAGE,), 15),
        ((TokenSpan(4, 8, "image", "d2"),), 4),
        ((TokenSpan(4, 8, "audio", "d1"),), 4),
        ((TokenSpan(4, 8, "", "d1"),), 4),
        ((TokenSpan(4, 8, "d1", "image"),), 4),
        ((), 4),
        ((TokenSpan(3, 9, "image", "d1"),), 3),
        ((TokenSpan(5, 7, "image", "d1"),), 4),
        # The first six tokens of the item, then text; and the item's beginning again from there on.
        ((TokenSpan(4, 6, "image", "d1"),), 10),
        ((TokenSpan(4, 6, "image", "d1"), TokenSpan(10, 2, "image", "d1")), 10),
        ((TokenSpan(0, 4, "image", "d1"), IMAGE), 0),
    ],
)
def test_a_hit_ends_at_the_first_token_that_stands_for_something_else(
    token_hash: str, spans: tuple[TokenSpan, ...], length: int
) -> None:
    engine, model = pair(token_hash)
    take(engine, model, *KEPT)
    hit = take(engine, model, Lookup(PLACEHOLDERS, spans=spans)).value
    assert hit == (Hit(0, 0, length) if length else None)
    admitted = take(engine, model, Submit(PLACEHOLDERS, 0, spans=spans), Schedule()).value
    assert admitted.admitted[0].hit == length  # type: ignore[union-attr]


def test_children_and_continuations_keep_what_their_tokens_stand_for() -> None:
    engine, model = pair()
    take(engine, model, *KEPT, Fork(0, 8, 8), Finish(0, retain=False))
    assert engine.sequences[1].tokens == model.known_as(1)
    # What is appended behind a cut through the item is text, though the item went on there.
    take(
        engine, model, Truncate(1, 6), BeginUnit((Append(1, ((9, 0, 1), (9, 0, 1))),)), EndUnit(1), Finish(1)
    )
    assert take(engine, model, Lookup(PLACEHOLDERS, spans=(IMAGE,))).value == Hit(1, 1, 6)
    shorter = (TokenSpan(4, 2, "image", "d1"),)
    assert take(engine, model, Lookup(PLACEHOLDERS, spans=shorter)).value == Hit(1, 1, 8)
    assert take(engine, model, Lookup(PLACEHOLDERS)).value == Hit(1, 1, 4)


@pytest.mark.parametrize(
    "spans",
    [
        (TokenSpan(9, 8, "image", "d"),),
        (TokenSpan(4, 2, "image"), TokenSpan(5, 1, "image")),
        (TokenSpan(4, 0, "image"),),
        (TokenSpan(4, 2),),
        (TokenSpan(4, 2, "x" * 65),),
        (TokenSpan(4, 2, "image", "x" * 257),),
    ],
)
def test_spans_out_of_place_or_unnamed_are_refused_and_change_nothing(spans: tuple[TokenSpan, ...]) -> None:
    engine, model = pair()
    take(engine, model, *KEPT)
    before = snapshot(engine)
    for operation in (Submit(PLACEHOLDERS, 1, spans=spans), Lookup(PLACEHOLDERS, spans=spans)):
        assert take(engine, model, operation).refusal is RefusalKind.BAD_ARGUMENT
    assert snapshot(engine) == before
    assert engine.submit(run(0, 0, 1), 0) == 1
    with pytest.raises(BadArgument):
        engine.lookup(PLACEHOLDERS, spans=spans)


@pytest.mark.parametrize("spans", [1, 4, 5, 9])
def test_a_refusal_names_the_places_of_four_spans_at_most(spans: int) -> None:
    """However many spans a caller gives, the words stay short, and say that there are more."""
    engine, _ = pair()
    beyond = tuple(TokenSpan(16 + one, 1, "image") for one in range(spans))
    named = [(16 + one, 17 + one) for one in range(min(spans, 4))]
    words = f"spans at {named}{', …' if spans > 4 else ''}; found: 16 tokens"
    for ask in (
        lambda: engine.submit(PLACEHOLDERS, 1, spans=beyond),
        lambda: engine.lookup(PLACEHOLDERS, spans=beyond),
    ):
        with pytest.raises(BadArgument, match=re.escape(words)):
            ask()


def test_a_snapshot_with_media_survives_json() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    engine, model = pair()
    take(engine, model, *KEPT)
    plain = to_plain(snapshot(engine))
    jsonschema.Draft202012Validator(schema()).validate(plain)
    assert from_plain(plain) == snapshot(engine)
