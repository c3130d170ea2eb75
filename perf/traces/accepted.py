"""Recorded rounds of speculation: how many tokens each verified step of an answer accepted.

    {"id": id, "parent": id | null, "accept": [n, …]}

One turn a line, JSON Lines, plain or gzip; other keys are passed over.  ``n`` counts the model's own token, so it is at
least 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces.fields import Malformed, parse_object, present, request_id, shown
from kvcrucible.perf.traces.limits import MAX_ACCEPTED, MAX_ROUNDS
from kvcrucible.perf.traces.lines import Lines
from kvcrucible.perf.traces.request import RequestId


@dataclass(frozen=True, slots=True)
class AcceptedTurn:
    """One answer: what each of its rounds accepted, at least one round; ``parent`` is the turn that it follows."""

    id: RequestId
    parent: RequestId | None
    accepted: tuple[int, ...]


def read_accepted(path: Path, limit: int | None = None) -> list[AcceptedTurn]:
    """Return the turns of the file, the first ``limit`` of them or all.

    Raises :class:`InputError` that names file and line for what is not as promised, for more than ``MAX_ROUNDS`` rounds
    in all, and for a file without a turn.
    """
    turns: list[AcceptedTurn] = []
    rounds = 0
    lines = Lines(path)
    try:
        for line in lines:
            if len(turns) == limit:
                break
            try:
                turn = parse_turn(line)
            except Malformed as error:
                raise lines.error(error.found, error.remedy) from None
            rounds += len(turn.accepted)
            if rounds > MAX_ROUNDS:
                raise lines.error(f"more than {MAX_ROUNDS} rounds so far", "split the file, or set a limit")
            turns.append(turn)
    finally:
        lines.close()
    if not turns:
        raise InputError(f"{path}: no turn; give a file with at least one, or a limit of at least 1")
    return turns


def parse_turn(line: str) -> AcceptedTurn:
    """Return the turn of a line; raises :class:`Malformed`."""
    record = parse_object(line)
    accepted = present(record, "accept")
    if type(accepted) is not list or not accepted:
        raise Malformed(f"'accept' is {shown(accepted)}", "write a list of at least one integer")
    wrong = [one for one in accepted if type(one) is not int or not 1 <= one <= MAX_ACCEPTED]
    if wrong:
        raise Malformed(f"{shown(wrong[0])} in 'accept'", f"use integers of 1 to {MAX_ACCEPTED}")
    name = request_id(record, "id")
    if name is None:
        raise Malformed("'id' is null", "name every turn")
    return AcceptedTurn(name, request_id(record, "parent"), tuple(accepted))
