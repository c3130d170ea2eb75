"""What a storage profile costs under a geometry: every figure from the plane list (DESIGN 4.1, 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import Geometry, StorageProfile, check_page_size

GIB = 1 << 30

#: A block-table entry is an int32 (DESIGN 4.7).
TABLE_ENTRY_BYTES = 4

#: Largest number that is taken: far beyond any machine, and products of five of them still print.
MAX_NUMBER = 1 << 32

#: Largest budget that is taken, an exbibyte: no device has it, and its binary units still print.
MAX_BUDGET_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is laid out: ``context_tokens`` a sequence at most, ``concurrency`` sequences, one byte budget.

    Raises ``BadArgument`` for a page size that is no power of two and for numbers below 1, beyond
    ``MAX_NUMBER`` or, for the budget, beyond ``MAX_BUDGET_BYTES``.
    """

    geometry: Geometry
    page_size: int = 64
    context_tokens: int = 131_072
    concurrency: int = 16
    budget_bytes: int = GIB

    def __post_init__(self) -> None:
        check_page_size(self.page_size)
        geometry = self.geometry
        for name, value in (
            ("layers", geometry.layers),
            ("heads", geometry.kv_heads),
            ("dim", geometry.head_dim),
            ("page size", self.page_size),
            ("context", self.context_tokens),
            ("concurrency", self.concurrency),
        ):
            if not 1 <= value <= MAX_NUMBER:
                raise BadArgument(f"{name} {value}", f"1 to {MAX_NUMBER}", "give a number between")
        if not 1 <= self.budget_bytes <= MAX_BUDGET_BYTES:
            said = self.budget_bytes if self.budget_bytes < 1 else f"more than {MAX_BUDGET_BYTES}"
            raise BadArgument(
                f"a budget of {said} bytes", f"1 to {MAX_BUDGET_BYTES}", "give a number between"
            )

    @property
    def blocks_per_row(self) -> int:
        """Pages that a sequence of the whole context takes, L of DESIGN 4.10."""
        return -(-self.context_tokens // self.page_size)

    @property
    def block_table_bytes(self) -> int:
        """Bytes of one pool's block-table matrix, whatever the profile."""
        return self.concurrency * self.blocks_per_row * TABLE_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class PlaneFigures:
    """One plane, the same for every layer: bytes for a token and head, for a token, and in a page group."""

    name: str
    element: str
    group: int
    bytes_per_token_and_head: int
    bytes_per_token: int
    bytes_per_page_group: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One profile in a scenario; bytes are over all layers, heads and planes.

    ``tail_slack_worst_bytes``: what a sequence wastes at most, all columns of its last page but one.
    ``tail_slack_mean_bytes``: what it wastes on average where every length modulo P is equally likely.
    ``tokens_per_gib``, ``pages``: in whole page groups, of 2³⁰ bytes and of the scenario's budget.
    """

    profile: str
    planes: tuple[PlaneFigures, ...]
    bytes_per_token_and_head: int
    bytes_per_token: int
    bytes_per_page_group: int
    tail_slack_worst_bytes: int
    tail_slack_mean_bytes: float
    tokens_per_gib: int
    pages: int


def layout(profile: StorageProfile, scenario: Scenario) -> Layout:
    """Return the figures; raises ``BadArgument`` where the profile's groups do not divide the head dimension."""
    geometry, size = scenario.geometry, scenario.page_size
    rows = geometry.layers * geometry.kv_heads
    per_token = profile.bytes_per_token(geometry)
    per_page = profile.bytes_per_page_group(geometry, size)
    return Layout(
        profile.name,
        tuple(
            PlaneFigures(plane.name, plane.element, plane.group, row, rows * row, size * rows * row)
            for plane in profile.planes
            for row in (plane.bytes_per_row(geometry.head_dim),)
        ),
        profile.bytes_per_token_and_head(geometry.head_dim),
        per_token,
        per_page,
        (size - 1) * per_token,
        (size - 1) * per_token / 2,
        GIB // per_page * size,
        scenario.budget_bytes // per_page,
    )
