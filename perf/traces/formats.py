"""The three formats: how the first line tells them apart, and what turns a line of each into a request.

    normalised   {"t": s, "in": n, "out": n, "id": id, "parent": id | null, "blocks": [id] | null,
                  "block_size": n | null}
    Mooncake     {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id]}, blocks of 512
    Azure        CSV with a header: TIMESTAMP, ContextTokens, GeneratedTokens; no blocks

Other keys and columns are passed over.  Times of Azure count from the first row, which has to be the earliest.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from kvcrucible.perf.traces.fields import (
    Malformed,
    block_ids,
    count,
    number,
    parse_object,
    present,
    request_id,
    shown,
)
from kvcrucible.perf.traces.limits import MAX_ARRIVAL_S, MAX_BLOCK_SIZE, MAX_TOKENS
from kvcrucible.perf.traces.request import TraceRequest

#: Tokens of one block of the Mooncake traces; the format does not carry it.
MOONCAKE_BLOCK_SIZE = 512

#: From a line and the ordinal of its request to the request; raises :class:`Malformed`.
Parser = Callable[[str, int], TraceRequest]


class TraceFormat(StrEnum):
    """How a trace is written."""

    NORMALISED = "normalised"
    MOONCAKE = "mooncake"
    AZURE = "azure"


def recognise(first_line: str) -> tuple[TraceFormat, Parser]:
    """Return the format of a trace by its first line and the parser for its lines; raises :class:`Malformed`.

    The first line of an Azure trace is a header and no request.
    """
    if first_line.lstrip().startswith(("{", "[")):
        keys = parse_object(first_line).keys()
        if keys & {"input_length", "output_length", "hash_ids"}:
            return TraceFormat.MOONCAKE, parse_mooncake
        if {"t", "in"} & keys:
            return TraceFormat.NORMALISED, parse_normalised
        found = f"an object with the keys {shown(sorted(keys))}"
    else:
        columns = [name.strip() for name in _row(first_line)]
        if set(columns) & set(AzureParser.COLUMNS):
            return TraceFormat.AZURE, AzureParser(columns)
        found = f"a line that starts with {shown(first_line)}"
    raise Malformed(
        f"no trace format begins like this: {found}",
        "use the normalised form (t, in, out, …), Mooncake JSON Lines (timestamp, input_length, …) or an Azure CSV "
        "with its header (TIMESTAMP,ContextTokens,GeneratedTokens)",
    )


def parse_normalised(line: str, ordinal: int) -> TraceRequest:
    """Return the request of a normalised line."""
    record = parse_object(line)
    prompt_tokens = count(record, "in", 1, MAX_TOKENS)
    size = ids = None
    if (present(record, "blocks") is None) != (present(record, "block_size") is None):
        raise Malformed("only one of 'blocks' and 'block_size'", "give both, or null for both")
    if record["blocks"] is not None:
        size = count(record, "block_size", 1, MAX_BLOCK_SIZE)
        ids = block_ids(record, "blocks", prompt_tokens, size)
    own_id = request_id(record, "id")
    if own_id is None:
        raise Malformed("'id' is null", "give every request an id")
    return TraceRequest(
        own_id,
        number(record, "t", MAX_ARRIVAL_S),
        prompt_tokens,
        count(record, "out", 0, MAX_TOKENS),
        ids,
        size,
        request_id(record, "parent"),
    )


def parse_mooncake(line: str, ordinal: int) -> TraceRequest:
    """Return the request of a Mooncake line; its id is its ordinal."""
    record = parse_object(line)
    prompt_tokens = count(record, "input_length", 1, MAX_TOKENS)
    return TraceRequest(
        ordinal,
        number(record, "timestamp", MAX_ARRIVAL_S * 1000) / 1000,
        prompt_tokens,
        count(record, "output_length", 0, MAX_TOKENS),
        block_ids(record, "hash_ids", prompt_tokens, MOONCAKE_BLOCK_SIZE),
        MOONCAKE_BLOCK_SIZE,
        None,
    )


class AzureParser:
    """Turns rows into requests; remembers the columns of the header and the time of the first row."""

    COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

    def __init__(self, columns: list[str]) -> None:
        for name in self.COLUMNS:
            if columns.count(name) != 1:
                raise Malformed(
                    f"{columns.count(name)} columns {name} in the header {shown(columns)}",
                    f"the header needs each of {', '.join(self.COLUMNS)} once",
                )
        self._width = len(columns)
        self._time, self._prompt, self._output = (columns.index(name) for name in self.COLUMNS)
        self._start: datetime | None = None

    def __call__(self, line: str, ordinal: int) -> TraceRequest:
        """Return the request of a row; its id is its ordinal."""
        row = _row(line)
        if len(row) != self._width:
            raise Malformed(f"{len(row)} fields", f"the header has {self._width} columns; give as many")
        when = self._moment(row[self._time])
        self._start = self._start or when
        arrival_s = (when - self._start).total_seconds()
        if arrival_s < 0:
            raise Malformed(
                f"TIMESTAMP {shown(row[self._time])}, earlier than the first row",
                "sort the rows by TIMESTAMP",
            )
        if arrival_s > MAX_ARRIVAL_S:
            raise Malformed(
                f"TIMESTAMP {shown(row[self._time])}, millennia after the first", "correct the row"
            )
        prompt_tokens = self._count(row[self._prompt], "ContextTokens", 1)
        output_tokens = self._count(row[self._output], "GeneratedTokens", 0)
        return TraceRequest(ordinal, arrival_s, prompt_tokens, output_tokens, None, None, None)

    @staticmethod
    def _moment(text: str) -> datetime:
        try:
            # The traces give seven digits of a second; the seventh is dropped.
            when = datetime.fromisoformat(text.strip())
        except ValueError:
            raise Malformed(f"TIMESTAMP {shown(text)}", "write it as 2023-11-16 18:15:46.680590") from None
        return when if when.tzinfo else when.replace(tzinfo=UTC)

    @staticmethod
    def _count(text: str, column: str, low: int) -> int:
        digits = text.strip()
        # Not int(text) alone: it takes signs, underscores and digits of every script.
        if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_TOKENS))):
            raise Malformed(f"{column} {shown(text)}", f"write an integer of {low} to {MAX_TOKENS}")
        return count({column: int(digits)}, column, low, MAX_TOKENS)


def _row(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise Malformed(f"no CSV row ({error})", "write plain fields with commas between them") from None
