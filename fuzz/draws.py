"""What examples are drawn from: lengths and positions around page boundaries, few sources, small settings on
purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.operations import Identity
from kvcrucible.contract.profiles import PROFILES, storage_profile
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.geometry import payload_geometry
from kvcrucible.fuzz.setting import (
    DEVICES,
    HOST_ALIGNMENT_BYTES,
    HOSTILE_POLICY,
    SCHEDULES,
    SETTING_POLICIES,
    Depth,
    Setting,
)

#: Sources of token runs; few, so that prompts meet and part again.
SOURCES = (0, 1, 2)

#: Identities between which nothing may be shared.
IDENTITIES = (
    Identity(),
    Identity(tenant_salt="other"),
    Identity(adapter="other"),
    Identity(weights_epoch=1),
    Identity(position_mode="other"),
)

#: Where a position lies, before the offset: nothing, some pages, the frontier, the end of what is shared.
ANCHORS = ("zero", "pages", "frontier", "shared", "prompt")

#: How far a unit brings the backend: up to Main, not at all, half of what it lacks, or all but one position of it.
REACHES = ("follow", "follow", "follow", "stay", "half", "short")

#: How much of each append a unit keeps: all, all and saying so, one token, half, all but one, up to the next page
#: boundary of Main or of the backend, or one token of the first and all of the others.
ACCEPTS = ("one", "half", "but-one", "boundary", "backend-boundary", "first", "all", "said")

page_sizes = st.sampled_from((16, 64, 4))
picks = st.integers(0, 5)

#: Index of an identity; mostly the default, or nothing would ever be shared.
identities = st.sampled_from((0, 0, 0, 0, 1, 2, 3, 4))
offsets = st.sampled_from((0, 1, -1))
sessions = st.sampled_from((None, None, None, None, "a", "b"))


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens: whole pages and an offset, or a half page instead."""

    pages: int
    offset: int
    half: bool

    def tokens(self, page_size: int) -> int:
        """Return the number, at least 0."""
        return max(0, self.pages * page_size + (page_size // 2 if self.half else self.offset))


@dataclass(frozen=True, slots=True)
class Where:
    """A position in a sequence; ``raw`` leaves out the clamping to what is committed.  ``backend``: pages, frontier
    and what is shared are those of the backend, where there is one.
    """

    anchor: str
    pages: int
    offset: int
    raw: bool
    backend: bool = False


lengths = st.builds(Length, st.sampled_from((0, 0, 0, 1, 1, 2, 3)), offsets, st.booleans())

#: One request in eight may ask for more than could ever be placed; the others are cut to what could.
oversize = st.sampled_from((False,) * 7 + (True,))
positions = st.builds(
    Where,
    st.sampled_from(ANCHORS),
    st.integers(0, 3),
    offsets,
    st.sampled_from((False, False, False, True)),
    st.booleans(),
)
reaches = st.sampled_from(REACHES)
accepts = st.sampled_from(ACCEPTS)


def settings_for(
    engine: str,
    depths: tuple[str, ...],
    backends: tuple[str | None, ...] = (None,),
    profiles: tuple[str, ...] = tuple(PROFILES),
    hosts: tuple[bool, ...] = (False,),
    lookaheads: tuple[int, ...] = (0,),
    capacity_at: tuple[int, ...] = (),
    device: str = DEVICES[0],
) -> st.Strategy[Setting]:
    """Return small settings on purpose: pools of a few pages, few rows, every page size, every condition.

    ``backends``: the pools to draw from beside Main, None for no other.  Either pool may be the tight one.
    ``profiles``: names of storage profiles to draw from.  ``hosts``: whether there is a Host tier.  ``lookaheads``: of
    the queue.  ``capacity_at``: pages beyond those of one longest sequence (L = ceil(S / P)) that every pool has, below
    0 for fewer; empty for pools of any size.  ``device``: of every setting; on CUDA the order of effects is its own, so
    all have the first schedule.
    """

    def build(
        depth: str, page_size: int, capacity: int, context_pages: int, rows: int, bits: int | None, lagging: bool,
        profile: str, poison: str, backend: str | None, backend_size: int, room: int, host_pages: int,
        schedule: str, schedule_seed: int, fail_every: int, policy: str, policy_seed: int,
        lookahead: int, beyond: int | None,
    ) -> Setting:  # fmt: skip
        context = min(context_pages, capacity + 1) * page_size - (rows % 2)
        # As many tokens as Main holds, some pages more or fewer: either pool may be the one that is full.
        backend_capacity = max(1, pages_for(capacity * page_size, backend_size) + room)
        if beyond is not None:
            capacity = max(1, pages_for(context, page_size) + beyond)
            backend_capacity = max(1, pages_for(context, backend_size) + beyond)
        sizes = [page_size] if backend is None else [page_size, backend_size]
        host_bytes = _host_bytes(profile, sizes, host_pages) if host_pages else None
        scheduled = lagging and device == DEVICES[0]
        return Setting(
            engine, Depth(depth), capacity, page_size, max(context, 1), rows, bits, lagging, profile, poison,
            backend, backend_capacity, backend_size, host_bytes, schedule if scheduled else SCHEDULES[0],
            schedule_seed if scheduled else 0, fail_every if host_pages else 0,
            policy, policy_seed if policy == HOSTILE_POLICY else 0, lookahead, device=device,
        )  # fmt: skip

    with_host = True in hosts
    return st.builds(
        build,
        st.sampled_from(depths),
        page_sizes,
        st.integers(3, 12),
        st.integers(3, 8),
        st.sampled_from((3, 4, 5, 6, 2)),
        st.sampled_from((None, 0, 4)),
        st.booleans(),
        st.sampled_from(profiles),
        st.sampled_from(("nan", "huge")),
        st.sampled_from(backends),
        *(
            (st.just(16), st.just(0))
            if backends == (None,)
            else (page_sizes, st.sampled_from((0, 2, -1, -2, 6)))
        ),
        st.sampled_from(_HOST_PAGES if hosts == (True,) else (0, *_HOST_PAGES)) if with_host else st.just(0),
        st.sampled_from((*SCHEDULES, "compute-silent", "random-walk")),
        st.integers(0, 99),
        st.sampled_from((0, 0, 0, 4, 2, 1)) if with_host else st.just(0),
        st.sampled_from(SETTING_POLICIES),
        st.integers(0, 99),
        st.sampled_from(lookaheads),
        st.sampled_from(capacity_at) if capacity_at else st.none(),
    )


#: Look-aheads of settings of an engine that lets requests pass.
LOOKAHEADS = (0, 1, 3)


#: Pages of Main that the Host tier holds: mostly few, so that extents do not fit although their bytes are free.
_HOST_PAGES = (4, 3, 6, 2, 8, 12)


def _host_bytes(profile: str, page_sizes: list[int], pages: int) -> int:
    """Return the bytes of ``pages`` pages of Main, and of as many tokens in the other pool."""
    tokens, kind = pages * page_sizes[0], storage_profile(profile)
    geometry = payload_geometry(kind)
    needed = sum(pages_for(tokens, size) * kind.bytes_per_page_group(geometry, size) for size in page_sizes)
    return pages_for(needed, HOST_ALIGNMENT_BYTES) * HOST_ALIGNMENT_BYTES


def choose(ids: Iterable[int], pick: int) -> int | None:
    """Return one of ``ids`` by a number that need not be an index; None where there is none."""
    ordered = sorted(ids)
    return ordered[pick % len(ordered)] if ordered else None
