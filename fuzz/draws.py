"""What examples are drawn from: lengths and positions around page boundaries, few sources, small settings on
purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import strategies as st

from kvcrucible.contract.operations import Identity
from kvcrucible.fuzz.setting import Depth, Setting

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
    """A position in a sequence; ``raw`` leaves out the clamping to what is committed."""

    anchor: str
    pages: int
    offset: int
    raw: bool


lengths = st.builds(Length, st.sampled_from((0, 0, 0, 1, 1, 2, 3)), offsets, st.booleans())

#: One request in eight may ask for more than could ever be placed; the others are cut to what could.
oversize = st.sampled_from((False,) * 7 + (True,))
positions = st.builds(
    Where, st.sampled_from(ANCHORS), st.integers(0, 3), offsets, st.sampled_from((False, False, False, True))
)


def settings_for(engine: str, depths: tuple[str, ...]) -> st.SearchStrategy[Setting]:
    """Return small settings on purpose: pools of a few pages, few rows, every page size, every condition."""

    def build(
        depth: str, page_size: int, capacity: int, context_pages: int, rows: int, bits: int | None, lagging: bool,
        profile: str, poison: str,
    ) -> Setting:  # fmt: skip
        context = min(context_pages, capacity + 1) * page_size - (rows % 2)
        return Setting(
            engine, Depth(depth), capacity, page_size, max(context, 1), rows, bits,
            lagging and depth == Depth.PAYLOAD, profile, poison,
        )  # fmt: skip

    return st.builds(
        build,
        st.sampled_from(depths),
        st.sampled_from((16, 64, 4)),
        st.integers(3, 12),
        st.integers(3, 8),
        st.sampled_from((3, 4, 5, 6, 2)),
        st.sampled_from((None, 0, 4)),
        st.booleans(),
        st.sampled_from(("FP32", "BF16")),
        st.sampled_from(("nan", "huge")),
    )


def choose(ids: Iterable[int], pick: int) -> int | None:
    """Return one of ``ids`` by a number that need not be an index; None where there is none."""
    ordered = sorted(ids)
    return ordered[pick % len(ordered)] if ordered else None
