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


#: What free and stale columns may be filled with.
POISONS = ("nan", "huge")


def _fits(annotation: str, value: Any) -> bool:
    """Say whether a plain value can be that of a field with this annotation."""
    match annotation:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "int | None":
            return value is None or (isinstance(value, int) and not isinstance(value, bool))
        case "bool":
            return isinstance(value, bool)
        case "str | None":
            return value is None or isinstance(value, str)
    return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class Setting:
    """Geometry and conditions of one example.

    ``backend``: the speculative backend's pool beside Main, ``mtp`` or ``draft``, with its own size and page size;
    None for Main alone.  ``hash_bits``: bits that the prefix index's hash keeps, so that 0 makes all tokens collide;
    None is Python's own hash. ``lagging``: device effects run only when the example says so.  ``profile``: storage
    profile at payload depth. ``poison``: what free and stale columns are filled with, ``nan`` or ``huge`` (a large
    finite value).
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
    backend: str | None = None
    backend_capacity_pages: int = 8
    backend_page_size: int = 16

    def engine_config(self) -> EngineConfig:
        """Return the engine's configuration."""
        pools = [PoolSpec("main", self.capacity_pages, self.page_size)]
        if self.backend is not None:
            pools.append(PoolSpec(self.backend, self.backend_capacity_pages, self.backend_page_size))
        return EngineConfig(tuple(pools), self.max_context, self.max_concurrency)

    @property
    def pools(self) -> int:
        """Number of pools."""
        return 1 if self.backend is None else 2

    @property
    def placeable_tokens(self) -> int:
        """The longest sequence that the empty engine could hold."""
        return min(
            self.max_context,
            *[pool.capacity_pages * pool.page_size for pool in self.engine_config().pools],
        )

    def to_plain(self) -> dict[str, Any]:
        """Return JSON-ready data from which :meth:`from_plain` rebuilds the setting."""
        plain = asdict(self)
        plain["depth"] = self.depth.value
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Setting:
        """Rebuild a setting; raises ``InputError`` for an unknown field, or a value that the field cannot have."""
        kinds = {field.name: str(field.type) for field in fields(cls)}
        for name, value in plain.items():
            if name not in kinds:
                raise InputError(f"a setting has no field {name!r:.40}")
            if not _fits(kinds[name], value):
                raise InputError(f"setting {name} is {kinds[name]}, found {value!r:.80}")
        values = dict(plain)
        if "depth" in values:
            if values["depth"] not in list(Depth):
                raise InputError(f"unknown depth {values['depth']!r:.40}; known: {', '.join(Depth)}")
            values["depth"] = Depth(values["depth"])
        if values.get("poison", "nan") not in POISONS:
            raise InputError(f"unknown poison {values['poison']!r:.40}; known: {', '.join(POISONS)}")
        if (values.get("hash_bits") or 0) < 0:
            raise InputError(f"hash_bits is at least 0, found {values['hash_bits']}")
        return cls(**values)


def token_hash(bits: int | None) -> Any:
    """Return a hash of tokens that keeps ``bits`` bits."""
    if bits is None:
        return hash
    mask = (1 << bits) - 1
    return lambda token: hash(token) & mask
