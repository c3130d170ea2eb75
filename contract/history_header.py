"""The first line of a history: what an engine is and what it shows (DESIGN 6; decision 0017).

The values here are those of all lines; :mod:`kvcrucible.contract.history` has the others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from kvcrucible.contract.config import MAX_LOOKAHEAD

#: Name and version of the format; a change of meaning raises the number.
HISTORY_FORMAT = "kvcrucible.history/1"

#: Largest integer: 64-bit signed, as other languages hold it.
MAX_INTEGER = 2**63 - 1

Id: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Signed: TypeAlias = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Text: TypeAlias = Annotated[str, Meta(max_length=256)]


class Shown(StrEnum):
    """What a history shows; a rule that needs what is not shown is not judged, and the verdict says so."""

    #: Which physical pages are granted, and not only how many.
    PAGES = "pages"
    #: ``generations`` beside ``pages``: how often each granted page has been granted.
    GENERATIONS = "generations"
    #: Rows of the block-table matrix.
    ROWS = "rows"
    #: Prompts and appended tokens are the real ones (else their runs only count).
    TOKENS = "tokens"
    #: Every hit is the longest that the contract allows, and candidates are tried in its order (DESIGN 4.9).
    HITS = "hits"
    #: Refusals and reasons to wait are the contract's, every one is written, and none is left out.
    REFUSALS = "refusals"
    #: Requests are admitted in the order in which they were submitted, but for those that may pass (decision 0021).
    FIFO = "fifo"
    #: Continuations are released in order of last use (else any that may be released may go first).
    LRU = "lru"
    #: ``copies``: every copy of a partial tail.
    COPIES = "copies"
    #: ``done`` of units, and pages that retire until their units are done (decision 0013).
    FENCES = "fences"
    #: A request waits until what it hits on Host is back (decision 0020); else such hits are left out.
    RETURNS = "returns"


class Pool(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One pool; ``page_bytes`` is the size of a page on Host, 0 where there is no Host tier."""

    name: Text
    capacity_pages: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    page_size: Annotated[int, Meta(ge=1, le=2**31)]
    page_bytes: Id = 0


class Host(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The Host tier's arena."""

    capacity_bytes: Positive
    alignment_bytes: Positive


class Header(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line.

    ``reserves``: admission promises the worst case, so that an admitted sequence always finishes.  ``shows``: names of
    :class:`Shown`; unknown ones are refused, since a reader that does not know them cannot judge by them.
    ``lookahead``: how many requests behind a waiting head one ``schedule`` looks at, to let some pass (decision 0021).
    """

    format: Text
    engine: Text
    pools: Annotated[list[Pool], Meta(min_length=1, max_length=2)]
    max_context: Positive
    max_concurrency: Positive
    shows: list[Shown]
    reserves: bool = True
    host: Host | None = None
    lookahead: Annotated[int, Meta(ge=0, le=MAX_LOOKAHEAD)] = 0
