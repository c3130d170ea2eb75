"""Launch configurations from a committed table (DESIGN 4.11): chosen by what a call is, never by a timing at run time.

So the same logical inputs always run the same instructions in the same order: results are bit-identical whatever the
page ids, and from one process to the next.  ``launch_table.json`` holds rules; the first whose fields all match wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from kvcrucible.contract.errors import InputError

#: Name and version of the table's form.
FORMAT = "kvcrucible.launch-table/1"

#: The target of Triton's interpreter; compiled ones are ``sm_90`` or ``gfx942``.
INTERPRETER = "interpreter"

#: Lines (queries times grouped heads) up to which an entry counts as decode: one block, whose context may be split.
DECODE_LINES = 16
#: Context of a decode entry, in tokens, from which it counts as long.
LONG_TOKENS = 2048

#: Columns that one tile may have at least and at most; a page that is larger consists of several tiles.
LEAST_TILE, MOST_TILE = 16, 128

LENGTH_CLASSES = ("decode-short", "decode-long", "prefill")


@dataclass(frozen=True, slots=True)
class Key:
    """What a configuration may depend on; ``group`` is query heads for each KV head."""

    target: str
    profile: str
    head_dim: int
    group: int
    length: str


@dataclass(frozen=True, slots=True)
class Config:
    """How attention is launched.

    ``lines``: lines of a block, a power of two of at least 16.  ``tile``: most columns of a tile, a power of two.
    ``most_splits``, ``split_tokens``: an entry is cut into at most so many splits, of at least so many tokens; a bound,
    so that partial results do not grow with the context.  ``num_warps``, ``num_stages``: Triton's.
    """

    lines: int
    tile: int
    num_warps: int
    num_stages: int
    most_splits: int
    split_tokens: int


def length_class(queries: int, group: int, context: int) -> str:
    """Return the length class of one entry, from its own numbers alone: its batch changes no bit of its result."""
    if queries * group > DECODE_LINES:
        return "prefill"
    return "decode-long" if context >= LONG_TOKENS else "decode-short"


def config(key: Key) -> Config:
    """Return the configuration of the first rule that matches ``key``."""
    return _lookup(key)


@cache
def _lookup(key: Key) -> Config:
    for match, chosen in table():
        if all(getattr(key, field) in allowed for field, allowed in match.items()):
            return chosen
    raise InputError(f"the launch table has no rule for {key}")


@cache
def table() -> tuple[tuple[Mapping[str, tuple[Any, ...]], Config], ...]:
    """Return every rule: the values that each field may have, and the configuration."""
    text = resources.files(__package__).joinpath("launch_table.json").read_text("utf-8")
    return parse(json.loads(text))


def parse(plain: Mapping[str, Any]) -> tuple[tuple[Mapping[str, tuple[Any, ...]], Config], ...]:
    """Return the rules of a table that has been read; raises ``InputError`` for one that cannot be meant."""
    if plain.get("format") != FORMAT:
        raise InputError(f"the launch table is {plain.get('format')!r}, expected {FORMAT!r}")
    known = {field.name for field in fields(Key)}
    rules = []
    for rule in plain["rules"]:
        match = {name: tuple(values) for name, values in rule["match"].items()}
        if not match.keys() <= known or set(match.get("length", ())) - set(LENGTH_CLASSES):
            raise InputError(
                f"a launch rule matches on {rule['match']}; fields are {', '.join(sorted(known))}"
            )
        rules.append((match, _checked(Config(**rule["config"]))))
    return tuple(rules)


def _checked(chosen: Config) -> Config:
    """Refuse a configuration that no kernel can run with."""
    powers = (chosen.lines, chosen.tile, chosen.num_warps)
    if any(value < 1 or value & (value - 1) for value in powers) or chosen.lines < LEAST_TILE:
        raise InputError(f"{chosen}: lines, tile and warps are powers of two, lines at least {LEAST_TILE}")
    if not LEAST_TILE <= chosen.tile <= MOST_TILE or chosen.num_stages < 1 or chosen.most_splits < 1:
        raise InputError(
            f"{chosen}: tiles of {LEAST_TILE} to {MOST_TILE} columns, 1 stage and 1 split or more"
        )
    if chosen.split_tokens < 1:
        raise InputError(f"{chosen}: a split has tokens")
    return chosen
