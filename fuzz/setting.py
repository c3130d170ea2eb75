"""What one example of a campaign runs on: a small engine and the conditions around it, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import InputError


class Depth(StrEnum):
    """How deep an example looks (DESIGN 7)."""

    LEDGER = "ledger"
    PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class Setting:
    """Geometry and conditions of one example.

    ``hash_bits``: bits that the prefix index's hash keeps, so that 0 makes all tokens collide; None is Python's own
    hash. ``lagging``: device effects run only when the example says so.  ``profile``: storage profile at payload
    depth. ``poison``: what free and stale columns are filled with, ``nan`` or ``huge`` (a large finite value).
    """

    engine: str = "paged"
    depth: Depth = Depth.LEDGER
    capacity_pages: int = 8
    page_size: int = 16
    max_context: int = 128
    max_concurrency: int = 4
    hash_bits: int | None = None
    lagging: bool = False
    profile: str = "FP32"
    poison: str = "nan"

    def engine_config(self) -> EngineConfig:
        """Return the engine's configuration."""
        return EngineConfig(
            (PoolSpec("main", self.capacity_pages, self.page_size),), self.max_context, self.max_concurrency
        )

    def to_plain(self) -> dict[str, Any]:
        """Return JSON-ready data from which :meth:`from_plain` rebuilds the setting."""
        plain = asdict(self)
        plain["depth"] = self.depth.value
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Setting:
        """Rebuild a setting; raises ``InputError`` for an unknown field or depth."""
        unknown = sorted(set(plain) - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(f"a setting has no field {unknown[0]!r}")
        values = dict(plain)
        if "depth" in values:
            try:
                values["depth"] = Depth(values["depth"])
            except ValueError:
                raise InputError(f"unknown depth {values['depth']!r}; known: {', '.join(Depth)}") from None
        return cls(**values)


def token_hash(bits: int | None) -> Any:
    """Return a hash of tokens that keeps ``bits`` bits."""
    if bits is None:
        return hash
    mask = (1 << bits) - 1
    return lambda token: hash(token) & mask
