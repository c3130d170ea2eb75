"""Splits a line of a history that is too long into parts that go on with one another (``contract/history.py``)."""

from __future__ import annotations

import copy
from typing import TypeVar

from kvcrucible.contract.history import Admit, Begin, Line, PerPool, Schedule, Started, Work

Paged = TypeVar("Paged", Work, Started)


def split(line: Line) -> tuple[Line, Line]:
    """Return two lines that say what one says, of about half its length each; the first has ``more``.

    Raises ``ValueError`` for a line without a list that could be split.
    """
    first, second = copy.copy(line), copy.copy(line)
    first.more, first.counters = True, None
    if isinstance(first, Begin) and isinstance(second, Begin) and len(first.work) == 1:
        (work,) = first.work
        first.work, second.work = ([part] for part in _split_work(work))
        second.evicted = []
        return first, second
    # What else such a line says is short beside the pages of a transfer, or has been split off.
    if (
        isinstance(first, Admit | Schedule)
        and isinstance(second, Admit | Schedule)
        and len(first.started) == 1
        and not first.evicted
        and not getattr(first, "admitted", None)
    ):
        (started,) = first.started
        first.started, second.started = ([part] for part in _split_started(started))
        second.given_up = []
        return first, second
    lists = {
        name: value
        for name in line.__struct_fields__
        if isinstance(value := getattr(line, name), list) and value
    }
    lists.pop("counters", None)
    if not lists:
        raise ValueError(f"a line of {type(line).__name__} that cannot be split")
    longest = max(lists, key=lambda name: len(str(lists[name])))
    for name, value in lists.items():
        ahead, behind = value, []
        if name == longest or (longest == "pages" and name == "generations"):
            per_pool = name in ("pages", "generations")
            ahead, behind = (
                _halves(value) if per_pool else (value[: len(value) // 2], value[len(value) // 2 :])
            )
        setattr(first, name, ahead)
        setattr(second, name, behind)
    return first, second


def _split_pages(whole: Paged) -> tuple[Paged, Paged]:
    first, second = copy.copy(whole), copy.copy(whole)
    first.pages, second.pages = _halves(whole.pages)
    first.generations, second.generations = _halves(whole.generations)
    return first, second


def _split_started(started: Started) -> tuple[Started, Started]:
    """Split one transfer: every list of it in halves, what else it says in both."""
    first, second = _split_pages(started)
    for name in ("extents", "beside", "given_up", "evicted"):
        value = getattr(started, name)
        half = len(value) // 2
        setattr(first, name, value[:half])
        setattr(second, name, value[half:])
    return first, second


def _split_work(work: Work) -> tuple[Work, Work]:
    """Split one work: pages and runs in halves, the count in the first."""
    first, second = _split_pages(work)
    second.backend = None
    if work.append is not None:
        half = len(work.append) // 2
        first.append, second.append = work.append[:half], work.append[half:]
    elif work.prefill is not None:
        second.prefill = 0
    return first, second


def _halves(pages: PerPool) -> tuple[PerPool, PerPool]:
    return [one[: len(one) // 2] for one in pages], [one[len(one) // 2 :] for one in pages]
