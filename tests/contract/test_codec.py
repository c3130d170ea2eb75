"""Operations survive plain JSON; anything else is refused with the place where it is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcrucible.contract.codec import operation_from_plain, operation_to_plain
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.operations import (
    OPERATIONS,
    Append,
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Identity,
    Lookup,
    Operation,
    Pin,
    Prefill,
    Progress,
    Release,
    Restore,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
)

EXAMPLES: tuple[Operation, ...] = (
    Submit(
        ((0, 0, 5), (-1, 7, 1)), 3, "chat", consume=True, identity=Identity(tenant_salt="x", weights_epoch=2)
    ),
    TryAdmit(1),
    Schedule(),
    BeginUnit((Prefill(0, 4), Append(1, ((2, 0, 3),)))),
    EndUnit(0, commit=False),
    Fork(0, 3, 4, "other"),
    Truncate(2, 0),
    Checkpoint(1),
    Finish(1, retain=False),
    Cancel(5),
    Release(2),
    Pin(2, pinned=False),
    Lookup(
        ((0, 0, 9),),
        Identity(adapter="a"),
        (TokenSpan(1, 2, "image", "d"), TokenSpan(3, 4, media="e"), TokenSpan(8, 1, "audio")),
    ),
    Demote(2, keep=True),
    Restore(2),
    CancelTransfer(0),
    Progress(),
)


def test_there_is_an_example_of_every_operation() -> None:
    assert {type(operation) for operation in EXAMPLES} == set(OPERATIONS)


@pytest.mark.parametrize("operation", EXAMPLES, ids=lambda operation: type(operation).__name__)
def test_round_trip_through_json(operation: Operation) -> None:
    assert operation_from_plain(json.loads(json.dumps(operation_to_plain(operation)))) == operation


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ("Submit", "is \\[name, fields\\]"),
        (["Explode", {}], "unknown operation 'Explode'"),
        (["Truncate", {"sequence": 1}], "lacks its field 'position'"),
        (["Truncate", {"sequence": 1, "position": 0, "force": True}], "no field 'force'"),
        (["Truncate", {"sequence": True, "position": 0}], "64-bit integer"),
        (["Truncate", {"sequence": 2**63, "position": 0}], "64-bit integer"),
        (["Truncate", {"sequence": 1.0, "position": 0}], "64-bit integer"),
        (["EndUnit", {"unit": 0, "commit": 1}], "EndUnit.commit is bool"),
        (["Lookup", {"prompt": [[0, 0]]}], "a run is"),
        (["Lookup", {"prompt": [[0, 0, -1]]}], "at least 0"),
        (["Lookup", {"prompt": [], "identity": {"colour": "red"}}], "no field 'colour'"),
        (["Lookup", {"prompt": [], "identity": {"__doc__": "x"}}], "no field '__doc__'"),
        (["Lookup", {"prompt": [], "identity": {"adapter": 3}}], "adapter is str"),
        (["Lookup", {"prompt": [], "spans": 3}], "Lookup.spans is tuple"),
        (["Lookup", {"prompt": [], "spans": [[0, 1]]}], "a span is an object"),
        (["Lookup", {"prompt": [], "spans": [{"start": 0}]}], "a span is an object with start and length"),
        (["Lookup", {"prompt": [], "spans": [{"start": 0, "length": True}]}], "spans.length is a 64-bit"),
        (
            ["Lookup", {"prompt": [], "spans": [{"start": 0, "length": 1, "colour": "red"}]}],
            "no field 'colour'",
        ),
        (["Lookup", {"prompt": [], "spans": [{"start": 0, "length": 1, "media": 7}]}], "media is text"),
        (["Lookup", {"prompt": [], "spans": [{"start": 0, "length": 1, "media": "x" * 257}]}], "at most 256"),
        (
            ["Lookup", {"prompt": [], "spans": [{"start": 0, "length": 1, "token_type": "x" * 65}]}],
            "at most 64",
        ),
        (["BeginUnit", {"work": [["Fork", {}]]}], "unknown work 'Fork'"),
        (["Submit", {"prompt": [], "max_new": 1, "session": 4}], "session is str"),
    ],
)
def test_what_is_no_operation_is_refused(plain: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        operation_from_plain(plain)
