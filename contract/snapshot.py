"""The whole visible bookkeeping of an engine as plain data (DESIGN 6); no keys, no values.

A *full* snapshot holds everything.  A *partial* one holds the pools and only the entries that an operation touched; an
entry that was touched and is absent has ceased to exist.  Entries are frozen, so snapshots may share them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, get_args, get_type_hints

from kvcrucible.contract.operations import Identity
from kvcrucible.contract.quick import quick
from kvcrucible.contract.tiers import Tier as Tier  # noqa: PLC0414 - known by this name, too
from kvcrucible.contract.tokens import MediaSource, Tokens

#: Name and version of the serialised form; a change of meaning raises the number.
SNAPSHOT_FORMAT = "kvcrucible.snapshot/3"


@quick
@dataclass(frozen=True, slots=True)
class PoolState:
    """Counters of one pool, in pages (DESIGN 4.3).  Retiring pages, and those that transfers hold, count as leased."""

    name: str
    page_size: int
    capacity: int
    leased: int
    reserved: int
    free: int


@quick
@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica: the epoch and the columns that it has, and how many transfers read or write it.

    ``extent`` and ``slot``: where a Host replica lies; −1 on Device, whose place is the page's ``device``.
    """

    epoch: int
    coverage: int
    pins: int
    extent: int = -1
    slot: int = -1


@quick
@dataclass(frozen=True, slots=True)
class PageState:
    """One logical page: ``committed`` columns, ``references`` from spaces (and units), and its device lease; generation
    −1 where the engine has none to show.

    ``device`` is −1 where the page has no Device replica.  ``visible``: the tier of the replica that reads, tables and
    hits resolve to.  ``on_device``, ``on_host``: its replicas; both None on an engine without a Host tier, where the
    lease is all there is.
    """

    page: int
    pool: int
    epoch: int
    committed: int
    references: int
    device: int
    generation: int
    visible: Tier = Tier.DEVICE
    on_device: ReplicaState | None = None
    on_host: ReplicaState | None = None

    @property
    def in_transfer(self) -> bool:
        """Whether a transfer has pinned a replica of it."""
        on_device, on_host = self.on_device, self.on_host
        return (on_device is not None and on_device.pins > 0) or (on_host is not None and on_host.pins > 0)


@quick
@dataclass(frozen=True, slots=True)
class SpaceState:
    """The address space of one sequence or continuation in one pool.

    ``pages`` are logical page ids in order.  ``frontier`` is committed; ``provisional`` is where a unit in flight
    stops writing: the most that it commits, or more where a backend runs ahead (equal to the frontier outside a unit).
    """

    owner: int
    pool: int
    pages: tuple[int, ...]
    frontier: int
    provisional: int


@quick
@dataclass(frozen=True, slots=True)
class SequenceState:
    """One active sequence.  ``entitlement`` and ``reserved`` are pages per pool; ``limit`` is its last position + 1."""

    sequence: int
    row: int
    prompt: int
    limit: int
    session: str | None
    entitlement: tuple[int, ...]
    reserved: tuple[int, ...]
    in_flight: bool
    cancel_recorded: bool
    tokens: Tokens
    identity: Identity


@quick
@dataclass(frozen=True, slots=True)
class ContinuationState:
    """One retained bundle; ``last_use`` orders release under pressure (lowest first)."""

    continuation: int
    session: str | None
    pinned: bool
    last_use: int
    tokens: Tokens
    identity: Identity


@quick
@dataclass(frozen=True, slots=True)
class CheckpointState:
    """An immutable frontier of ``owner``, which every pool has reached.

    Per pool, in ``pages``, ``epochs`` and ``columns``: the logical page that holds its last token, that page's epoch
    when the checkpoint was made, and the columns that it protects.
    """

    checkpoint: int
    owner: int
    frontier: int
    pages: tuple[int, ...]
    epochs: tuple[int, ...]
    columns: tuple[int, ...]


@quick
@dataclass(frozen=True, slots=True)
class FindableState:
    """What the prefix index itself holds for a checkpoint, read from the index and not from the checkpoint."""

    checkpoint: int
    tokens: Tokens
    identity: Identity


@quick
@dataclass(frozen=True, slots=True)
class RowState:
    """One row of one pool's block-table matrix: who leases it and its page ids with trailing holes cut off.

    ``inverse``: the engine's own mapping back for this row, (page id, logical block) in order of pages; None where it
    keeps none.
    """

    pool: int
    row: int
    sequence: int | None
    entries: tuple[int, ...]
    inverse: tuple[tuple[int, int], ...] | None = None


@quick
@dataclass(frozen=True, slots=True)
class UnitState:
    """One unit in flight.

    ``work`` has (sequence, pool, first position, position after the last) for every selected sequence in every pool,
    the last two equal where it writes nothing there; ``frozen`` (pool, row, entries) for every selected row, as it was
    when it was frozen.
    """

    unit: int
    work: tuple[tuple[int, int, int, int], ...]
    frozen: tuple[tuple[int, int, tuple[int, ...]], ...]


@quick
@dataclass(frozen=True, slots=True)
class MoveState:
    """One page of a transfer, with both of its ends: a Device page with the generation of its lease, and a Host slot.

    ``epoch``, ``coverage``: what the destination has once it is copied.  ``fresh``: the destination is the transfer's
    own to free; else it is a clean copy that the page had before.  ``dropped``: the page has ended meanwhile.
    """

    page: int
    pool: int
    device: int
    generation: int
    extent: int
    slot: int
    epoch: int
    coverage: int
    fresh: bool
    dropped: bool


@quick
@dataclass(frozen=True, slots=True)
class TransferState:
    """One transfer under way, from ``source`` to the other tier; ``cancelling``: it will be abandoned."""

    transfer: int
    continuation: int
    source: Tier
    keep: bool
    cancelling: bool
    moves: tuple[MoveState, ...]


@quick
@dataclass(frozen=True, slots=True)
class RetiringState:
    """A physical page that waits for its fence: the lease that has ended, and the last unit that may touch the page."""

    pool: int
    device: int
    generation: int
    unit: int


@quick
@dataclass(frozen=True, slots=True)
class ExtentState:
    """One extent of the host arena, in bytes: ``slots`` pages of ``pool``, of which ``live`` have not ended."""

    extent: int
    offset: int
    size: int
    pool: int
    slots: int
    live: tuple[int, ...]


@quick
@dataclass(frozen=True, slots=True)
class HostState:
    """Totals of the host arena, in bytes (DESIGN 4.4)."""

    capacity: int
    alignment: int
    used: int
    free: int


@quick
@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything visible; dictionaries are keyed by the entry's id (spaces by (owner, pool), rows by (pool, row),
    retiring pages by (pool, device)).

    ``free_pages`` per pool, neither leased nor retiring, and ``host_holes``, (offset, size) by address, are None where
    the snapshot is partial or the engine cannot tell.  ``host`` is None on an engine without a Host tier.
    """

    pools: tuple[PoolState, ...]
    pages: dict[int, PageState] = field(default_factory=dict)
    spaces: dict[tuple[int, int], SpaceState] = field(default_factory=dict)
    sequences: dict[int, SequenceState] = field(default_factory=dict)
    continuations: dict[int, ContinuationState] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointState] = field(default_factory=dict)
    findable: dict[int, FindableState] = field(default_factory=dict)
    rows: dict[tuple[int, int], RowState] = field(default_factory=dict)
    units: dict[int, UnitState] = field(default_factory=dict)
    transfers: dict[int, TransferState] = field(default_factory=dict)
    retiring: dict[tuple[int, int], RetiringState] = field(default_factory=dict)
    extents: dict[int, ExtentState] = field(default_factory=dict)
    queue: tuple[int, ...] = ()
    host: HostState | None = None
    free_pages: tuple[tuple[int, ...], ...] | None = None
    host_holes: tuple[tuple[int, int], ...] | None = None

    @property
    def counters(self) -> tuple[tuple[int, int, int], ...]:
        """(leased, reserved, free) per pool."""
        return tuple((pool.leased, pool.reserved, pool.free) for pool in self.pools)


@dataclass(slots=True)
class Touched:
    """Ids of the entries that an operation created, changed or removed, by the snapshot field that holds them."""

    pages: set[int] = field(default_factory=set)
    spaces: set[tuple[int, int]] = field(default_factory=set)
    sequences: set[int] = field(default_factory=set)
    continuations: set[int] = field(default_factory=set)
    checkpoints: set[int] = field(default_factory=set)
    rows: set[tuple[int, int]] = field(default_factory=set)
    units: set[int] = field(default_factory=set)
    transfers: set[int] = field(default_factory=set)
    retiring: set[tuple[int, int]] = field(default_factory=set)
    extents: set[int] = field(default_factory=set)


#: The snapshot's keyed parts, in field order.
KEYED_PARTS: tuple[str, ...] = tuple(
    f.name for f in fields(Snapshot) if f.name not in ("pools", "queue", "host", "free_pages", "host_holes")
)


assert [f.name for f in fields(Snapshot)][: len(KEYED_PARTS) + 3] == [
    "pools",
    *KEYED_PARTS,
    "queue",
    "host",
], "snapshots are also built by position"

#: For each keyed part, the field of :class:`Touched` that names its entries.
_TOUCHED_BY: tuple[tuple[str, str], ...] = tuple(
    (part, "checkpoints" if part == "findable" else part) for part in KEYED_PARTS
)


def advanced(before: Snapshot, partial: Snapshot, touched: Touched) -> Snapshot:
    """Return the state after a step: that before it, with the touched entries as ``partial`` has them.

    A touched entry that ``partial`` lacks has ceased to exist.  Parts of which nothing was touched are those of
    ``before``, the same objects; free lists and holes are not known and None.  Mutates nothing.
    """
    # In the order of the fields: the pools, the keyed parts, the queue and the arena.
    parts: list[Any] = [partial.pools]
    for part, named in _TOUCHED_BY:
        entries, ids = getattr(before, part), getattr(touched, named)
        if ids:
            entries, found = dict(entries), getattr(partial, part)
            for key in ids:
                if key in found:
                    entries[key] = found[key]
                else:
                    entries.pop(key, None)
        parts.append(entries)
    parts += (partial.queue, partial.host)
    return Snapshot(*parts)


def to_plain(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as JSON-ready data that satisfies :func:`schema`; keyed parts become lists in key order."""
    plain: dict[str, Any] = {
        "format": SNAPSHOT_FORMAT,
        "pools": [_entry_to_plain(pool) for pool in snapshot.pools],
        "queue": list(snapshot.queue),
        "host": _value_to_plain(snapshot.host),
        "free_pages": _value_to_plain(snapshot.free_pages),
        "host_holes": _value_to_plain(snapshot.host_holes),
    }
    for part in KEYED_PARTS:
        entries = getattr(snapshot, part)
        plain[part] = [_entry_to_plain(entries[key]) for key in sorted(entries)]
    return plain


def _entry_to_plain(entry: Any) -> dict[str, Any]:
    return {f.name: _value_to_plain(getattr(entry, f.name)) for f in fields(entry)}


def _value_to_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_value_to_plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return _entry_to_plain(value) if is_dataclass(value) else value


_ENTRY_TYPES: dict[str, type] = {
    "pages": PageState,
    "spaces": SpaceState,
    "sequences": SequenceState,
    "continuations": ContinuationState,
    "checkpoints": CheckpointState,
    "findable": FindableState,
    "rows": RowState,
    "units": UnitState,
    "transfers": TransferState,
    "retiring": RetiringState,
    "extents": ExtentState,
}


def from_plain(plain: dict[str, Any]) -> Snapshot:
    """Rebuild a snapshot from :func:`to_plain`'s data; the caller has validated it against :func:`schema`."""
    parts: dict[str, Any] = {}
    for part, kind in _ENTRY_TYPES.items():
        entries = [_entry_from_plain(kind, entry) for entry in plain[part]]
        parts[part] = {_key(part, entry): entry for entry in entries}
    return Snapshot(
        pools=tuple(_entry_from_plain(PoolState, pool) for pool in plain["pools"]),
        queue=tuple(plain["queue"]),
        host=None if plain["host"] is None else _entry_from_plain(HostState, plain["host"]),
        free_pages=_frozen(plain["free_pages"]),
        host_holes=_frozen(plain["host_holes"]),
        **parts,
    )


def _entry_from_plain(kind: type, plain: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    return kind(**{name: _value_from_plain(hints[name], value) for name, value in plain.items()})


def _value_from_plain(hint: Any, value: Any) -> Any:
    if isinstance(value, dict):
        (kind,) = [one for one in (hint, *get_args(hint)) if isinstance(one, type) and is_dataclass(one)]
        return _entry_from_plain(kind, value)
    if hint is Tier:
        return Tier(value)
    if hint == tuple[MoveState, ...]:
        return tuple(_entry_from_plain(MoveState, item) for item in value)
    return _frozen(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        # Among what is in lists, only tokens' sources are objects.
        return MediaSource(**value)
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _key(part: str, entry: Any) -> Any:
    match part:
        case "spaces":
            return entry.owner, entry.pool
        case "rows":
            return entry.pool, entry.row
        case "retiring":
            return entry.pool, entry.device
    return getattr(entry, fields(entry)[0].name)


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of :func:`to_plain`'s data."""
    text = resources.files("kvcrucible.contract").joinpath("schemas/snapshot.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded
