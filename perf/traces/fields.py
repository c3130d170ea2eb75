"""Checked access to what a line says; everything that is wrong is a :class:`Malformed` with a remedy.

The reader adds file and line.  What was found is quoted shortened; it may still hold any characters, and whoever shows
it spells them out.
"""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from typing import Any

from kvcrucible.perf.traces.limits import (
    MAX_BLOCK_ID,
    MAX_BLOCK_IDS,
    MAX_ID_CHARACTERS,
)
from kvcrucible.perf.traces.request import RequestId


class Malformed(Exception):
    """A line that is not what its format promises: ``found`` says what is there, ``remedy`` what to do."""

    def __init__(self, found: str, remedy: str) -> None:
        self.found, self.remedy = found, remedy
        super().__init__(f"{found}; {remedy}")


def shown(value: object) -> str:
    """Return ``value`` for a message, at most some sixty characters long, whatever its size."""
    return reprlib.repr(value)


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object that ``text`` is; keys are unique and numbers finite, deeper values as they come."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise Malformed("JSON nested too deeply", "write one flat object a line") from None
    except json.JSONDecodeError as error:
        raise Malformed(
            f"no JSON ({error.msg}, column {error.colno})",
            "the file may be cut short or of another format; write one object a line",
        ) from None
    except ValueError:
        # Integers of thousands of digits: Python refuses to convert them.
        raise Malformed("a number of thousands of digits", "write numbers of at most 20 digits") from None
    if not isinstance(value, dict):
        raise Malformed(f"a JSON {type(value).__name__}", "write one object a line")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise Malformed(f"key {shown(twice)} twice in one object", "keep one of the two")
    return made


def _no_constant(name: str) -> Any:
    raise Malformed(f"the number {name}", "write a finite number, or null where a value may be absent")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def present(record: dict[str, Any], key: str) -> Any:
    """Return ``record[key]``; it may be None."""
    if key not in record:
        raise Malformed(f"no key {key!r}", f"every line needs it; this one has {shown(list(record))}")
    return record[key]


def count(record: dict[str, Any], key: str, low: int, high: int) -> int:
    """Return an integer of ``low`` to ``high``; true and 1.0 are none."""
    value = present(record, key)
    if type(value) is not int:
        raise Malformed(f"{key!r} is {shown(value)}", f"write an integer of {low} to {high}")
    if not low <= value <= high:
        raise Malformed(f"{key!r} is {shown(value)}", f"use {low} to {high}")
    return value


def number(record: dict[str, Any], key: str, high: float) -> float:
    """Return a finite number of 0 to ``high``; true is none."""
    value = present(record, key)
    if type(value) not in (int, float):
        raise Malformed(f"{key!r} is {shown(value)}", "write a number")
    # Compared before it becomes a float: an integer may be too large to become one. Infinity comes from 1e999.
    if not 0 <= value <= high:
        raise Malformed(f"{key!r} is {shown(value)}", f"use 0 to {high:g}")
    return float(value)


def request_id(record: dict[str, Any], key: str) -> RequestId | None:
    """Return an integer, a text or None."""
    value = present(record, key)
    if value is None:
        return None
    if type(value) is int and 0 <= value <= MAX_BLOCK_ID:
        return value
    if type(value) is str and 0 < len(value) <= MAX_ID_CHARACTERS:
        return value
    raise Malformed(
        f"{key!r} is {shown(value)}",
        f"use an integer of 0 to {MAX_BLOCK_ID} or a text of 1 to {MAX_ID_CHARACTERS} characters",
    )


def block_ids(record: dict[str, Any], key: str, prompt_tokens: int, block_size: int) -> tuple[int, ...]:
    """Return the block ids of a prompt: floor or ceil(``prompt_tokens`` / ``block_size``) of them."""
    value = present(record, key)
    if type(value) is not list:
        raise Malformed(f"{key!r} is {shown(value)}", "write a list of integers")
    if len(value) > MAX_BLOCK_IDS:
        raise Malformed(f"{len(value)} ids in {key!r}", f"use at most {MAX_BLOCK_IDS}")
    whole, begun = prompt_tokens // block_size, -(-prompt_tokens // block_size)
    if len(value) not in (whole, begun):
        raise Malformed(
            f"{len(value)} ids in {key!r} for a prompt of {prompt_tokens} tokens in blocks of {block_size}",
            f"give {whole} ids (whole blocks)"
            + (f" or {begun} (the partial one too)" if begun > whole else ""),
        )
    if not {*map(type, value)} <= {int} or (value and not 0 <= min(value) <= max(value) <= MAX_BLOCK_ID):
        wrong = next(one for one in value if type(one) is not int or not 0 <= one <= MAX_BLOCK_ID)
        raise Malformed(f"{shown(wrong)} in {key!r}", f"use integers of 0 to {MAX_BLOCK_ID}")
    return tuple(value)
