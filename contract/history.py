"""Histories: what an engine did, as JSON Lines that any engine can write (DESIGN 6; decision 0017).

The first line is the :class:`~kvcrucible.contract.history_header.Header`; each further line is one operation with what
came of it, told by its ``op``; the last is :class:`Close`.  The types are the format: :func:`decoder` reads a line by
them, and ``schemas/history.schema.json`` is made from them.  ``docs/histories.md`` tells the author of an engine what
to write.

What every line may carry beside its own fields:

``refused``    the kind of refusal; then nothing was done and what the operation would have given is left out
``counters``   (leased, reserved, free) of each pool afterwards
``more``       the next line goes on with this one: same ``op``, its lists continue the lists of this line

Lists called ``pages`` hold a list for each pool, in pool order; trailing empty ones may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.history_header import HISTORY_FORMAT, Header, Id, Positive, Signed, Text
from kvcrucible.contract.media import MAX_MEDIA, MAX_TOKEN_TYPE, TokenSpan
from kvcrucible.contract.operations import AdmissionMode, Identity, TransferOutcome, WaitingKind
from kvcrucible.contract.tiers import Tier

#: Bytes of one line, its end included.  A prompt of 150,000 tokens in blocks of 64 takes three quarters of it; what is
#: longer is written as several lines with ``more``.
MAX_LINE_BYTES = 64 << 10

#: Lines that make one operation; bounds what is held before it can be judged at all (16 MiB of text).
MAX_PARTS = 256

#: What a caller named; it may name nothing, and is then refused.
Handle: TypeAlias = Signed
#: (source, start, length): see ``contract/tokens.py``.
Run: TypeAlias = tuple[Signed, Signed, Positive]
Runs: TypeAlias = list[Run]
Counters: TypeAlias = list[tuple[Id, Id, Id]]
PerPool: TypeAlias = list[list[Id]]
#: (pool, page copied from, page copied to, columns).
Copy: TypeAlias = tuple[Id, Id, Id, Id]


class _Line(Struct, tag_field="op", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    counters: Counters | None = None
    refused: RefusalKind | None = None
    more: bool = False


class IdentityFields(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What must be equal beside the tokens (DESIGN 4.9); absent fields are the defaults of ``Identity``."""

    adapter: Text = ""
    tenant_salt: Text = ""
    weights_epoch: Signed = 0
    position_mode: Text = "absolute"

    def to_identity(self) -> Identity:
        """Return the contract's identity."""
        return Identity(self.adapter, self.tenant_salt, self.weights_epoch, self.position_mode)


class Span(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which tokens of a prompt stand for which media item (decision 0022).

    A type or digest that is too long is refused, and stands here as its first characters, one more than are allowed.
    """

    start: Signed
    length: Signed
    token_type: Annotated[str, Meta(max_length=MAX_TOKEN_TYPE + 1)] = ""
    media: Annotated[str, Meta(max_length=MAX_MEDIA + 1)] = ""

    def to_span(self) -> TokenSpan:
        """Return the contract's span."""
        return TokenSpan(self.start, self.length, self.token_type, self.media)


class Submit(_Line, tag="submit"):
    """A request joins the queue as ``sequence``; ``spans`` are in the order of their places in the prompt."""

    prompt: Runs
    max_new: Signed
    sequence: Id | None = None
    session: Text | None = None
    consume: bool = False
    identity: IdentityFields | None = None
    spans: list[Span] = []


class Admission(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """How one request became active.  ``pages``: private copies of partial tails, at most one a pool."""

    sequence: Id
    mode: AdmissionMode
    source: Id | None = None
    hit: Id = 0
    row: Id | None = None
    pages: PerPool = []
    generations: PerPool = []
    copies: list[Copy] = []


class Wait(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Why a queued request stays queued."""

    sequence: Id
    why: WaitingKind


class NewExtent(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """An extent of the host arena, in bytes, taken for the pages of one pool."""

    pool: Id
    offset: Id
    size: Id


class Started(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A transfer out of the tier ``source`` that was started for the sake of a request which then waits.

    From Host: ``positions`` that it covers from the first on, those which the request is to start from; ``pages`` as
    for ``restore``; the Host slots stay as clean copies.  From Device: what nobody holds but the continuation and those
    ``beside`` it, into ``extents`` as for ``demote``; for their sake the Host copies of those ``given_up`` (of pages
    that are visible on Device and not the continuation's own) were freed before, and those ``evicted``, on Host alone,
    released.  One that is split by ``more`` is the last of one part and the first of the next: its lists go on, what
    else it says is said again.
    """

    transfer: Id
    continuation: Id
    source: Tier
    positions: Id = 0
    pages: PerPool = []
    generations: PerPool = []
    extents: list[NewExtent] = []
    beside: list[Id] = []
    given_up: list[Id] = []
    evicted: list[Id] = []


class Admit(_Line, tag="admit"):
    """One request was tried: it was admitted, or it waits (one of the two); ``evicted`` were released for it, and
    ``started`` is what it waits for.  ``given_up``: before, continuations lost their Device copies of pages that are
    visible on Host.
    """

    admission: Admission | None = None
    wait: Wait | None = None
    sequence: Handle | None = None
    evicted: list[Id] = []
    started: list[Started] = []
    given_up: list[Id] = []


class Schedule(_Line, tag="schedule"):
    """The queue was tried from its head until one waits (``wait``, and ``started`` for it) or it is empty.

    Those who passed a head that waits come last in ``admitted``; ``wait`` is why it waited before them.
    ``evicted``, ``given_up`` as for ``admit``, for all of them in order.  Those that are released for what sinks stand
    with it alone.
    """

    admitted: list[Admission] = []
    wait: Wait | None = None
    evicted: list[Id] = []
    started: list[Started] = []
    given_up: list[Id] = []


class Work(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a unit writes of one sequence: ``prefill`` positions of its prompt, or ``append`` tokens.

    ``pages`` are those granted for it.  A work that is split over two lines by ``more`` is the last of one and the
    first of the next: counts add up, lists go on.
    """

    sequence: Handle
    prefill: Signed | None = None
    append: Runs | None = None
    backend: Signed | None = None
    pages: PerPool = []
    generations: PerPool = []


class Begin(_Line, tag="begin"):
    """A unit begins: pages are granted, mappings published, rows frozen."""

    work: list[Work]
    unit: Id | None = None
    evicted: list[Id] = []


class End(_Line, tag="end"):
    """A unit ends.  ``frontiers``: Main's of the rows that live on, ``cancelled``: the others, both in order of work.

    ``accepted``: (sequence, tokens): of what the unit appended to the sequence only so many first tokens are kept
    (decision 0023).
    ``done``: its device effects are known to be over, so that its pages are at rest.
    """

    unit: Handle
    commit: bool = True
    accepted: list[tuple[Handle, Signed]] = []
    done: bool = False
    frontiers: list[tuple[Id, Id]] | None = None
    cancelled: list[Id] = []


class Fork(_Line, tag="fork"):
    """A child shares the source's first ``position`` tokens; ``pages`` are its copies of partial tails."""

    source: Handle
    position: Signed
    max_new: Signed
    session: Text | None = None
    sequence: Id | None = None
    row: Id | None = None
    pages: PerPool = []
    generations: PerPool = []
    copies: list[Copy] = []
    evicted: list[Id] = []


class Truncate(_Line, tag="truncate"):
    """An active sequence is cut; ``pages`` are copies of cut pages that were shared."""

    sequence: Handle
    position: Signed
    pages: PerPool = []
    generations: PerPool = []
    copies: list[Copy] = []
    evicted: list[Id] = []


class Checkpoint(_Line, tag="checkpoint"):
    """What every pool has committed becomes findable, as ``checkpoint``."""

    sequence: Handle
    checkpoint: Id | None = None


class Finish(_Line, tag="finish"):
    """An active sequence ends; ``kept``: it stays as a continuation."""

    sequence: Handle
    retain: bool = True
    kept: bool | None = None


class Cancel(_Line, tag="cancel"):
    """A queued or active sequence is dropped; ``done`` false: recorded for the end of its unit."""

    sequence: Handle
    done: bool | None = None


class Release(_Line, tag="release"):
    """A continuation is dropped."""

    continuation: Handle


class Pin(_Line, tag="pin"):
    """A continuation is protected, or no longer."""

    continuation: Handle
    pinned: bool = True


class Found(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The best checkpoint for a prompt."""

    source: Id
    length: Id
    checkpoint: Id | None = None


class Lookup(_Line, tag="lookup"):
    """What a prompt, with ``spans`` as for ``submit``, would hit; ``hit`` is absent where nothing is found."""

    prompt: Runs
    identity: IdentityFields | None = None
    spans: list[Span] = []
    hit: Found | None = None


class Demote(_Line, tag="demote"):
    """A continuation's movable pages start towards Host, into one extent for each pool that has any to copy."""

    continuation: Handle
    keep: bool = False
    transfer: Id | None = None
    extents: list[NewExtent] = []


class Restore(_Line, tag="restore"):
    """A continuation's pages start towards Device; ``pages``: one for each without a Device copy, in logical order."""

    continuation: Handle
    keep: bool = False
    transfer: Id | None = None
    pages: PerPool = []
    generations: PerPool = []
    evicted: list[Id] = []


class CancelTransfer(_Line, tag="cancel-transfer"):
    """A transfer is marked, so that it ends with its source visible as before."""

    transfer: Handle


class Ended(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A transfer is over; ``failed``: one of its copies did not succeed."""

    transfer: Id
    outcome: TransferOutcome
    failed: bool = False


class Progress(_Line, tag="progress"):
    """Finished effects were noted: units in order of their ends, transfers in order of their ids."""

    units: list[Id] = []
    transfers: list[Ended] = []


class Table(_Line, tag="table"):
    """What the block table maps for a sequence now, for each pool: a statement to be judged, no operation."""

    sequence: Id
    pages: PerPool


class Close(_Line, tag="close"):
    """The last line.  ``lines``: lines between the header and this one.  ``empty``: nothing is alive any more."""

    lines: Id
    empty: bool = False


Line: TypeAlias = (
    Submit
    | Admit
    | Schedule
    | Begin
    | End
    | Fork
    | Truncate
    | Checkpoint
    | Finish
    | Cancel
    | Release
    | Pin
    | Lookup
    | Demote
    | Restore
    | CancelTransfer
    | Progress
    | Table
    | Close
)

#: Every kind of line by its ``op``.
LINES: dict[str, type[_Line]] = {kind.__struct_config__.tag: kind for kind in Line.__args__}


def decoder() -> Callable[[bytes], Line]:
    """Return what reads one line; it raises ``msgspec.DecodeError`` or ``msgspec.ValidationError``."""
    return msgspec.json.Decoder(Line).decode


def encoder() -> Callable[[Any], bytes]:
    """Return what writes a header or a line, compact and without its end."""
    return msgspec.json.Encoder().encode


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a header (``$defs/Header``) and of a line (``$defs/Line``)."""
    (header, line), parts = msgspec.json.schema_components([Header, Line], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made from kvcrucible.contract.history; a test compares the two.",
        "title": HISTORY_FORMAT,
        "anyOf": [header, line],
        "$defs": parts | {"Line": line},
    }


@cache
def schema() -> dict[str, Any]:
    """Return the schema as it stands in ``schemas/history.schema.json``."""
    text = resources.files("kvcrucible.contract").joinpath("schemas/history.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded
