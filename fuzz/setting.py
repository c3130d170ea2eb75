"""What one example of a campaign runs on: a small engine and the conditions around it, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any

from kvcrucible.contract.config import (
    LRU,
    MAX_LOOKAHEAD,
    POLICIES,
    EngineConfig,
    HostSpec,
    PoolSpec,
    pages_for,
)
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.planes import BACKENDS
from kvcrucible.contract.profiles import storage_profile
from kvcrucible.fuzz.geometry import payload_planes


class Depth(StrEnum):
    """How deep an example looks (DESIGN 7)."""

    LEDGER = "ledger"
    PAYLOAD = "payload"


#: What free and stale columns may be filled with.
POISONS = ("nan", "huge")

#: How a lagging device decides what happens next: oldest first; anything; copies, or the compute stream, only when
#: nothing else can go on; the host told of the compute stream last; priorities that change at random points
#: (:mod:`kvcrucible.fuzz.adapters.schedules`).
SCHEDULES = ("in-order", "random-walk", "copies-starved", "compute-starved", "compute-silent", "priority")

#: Where planes and tables may be: main memory, or torch's current CUDA device.
DEVICES = ("cpu", "cuda")

#: Any order by seed, and names of what is not there: a policy on which nothing may depend.
HOSTILE_POLICY = "hostile"

#: Who may decide which continuation yields first (decision 0020).
SETTING_POLICIES = (*POLICIES, HOSTILE_POLICY)

#: What offsets and sizes of host extents are multiples of in examples: small, so that pages of every size tell.
HOST_ALIGNMENT_BYTES = 64

#: Configurations that are kept: an example asks for its own many times.
_KEPT_CONFIGS = 64


#: What an example's counts may be, at least and at most: two orders of magnitude beyond what is drawn, and small enough
#: that a file from anywhere can ask for megabytes and seconds at most.
_LIMITS: dict[str, tuple[int, int]] = {
    "capacity_pages": (1, 1 << 12),
    "backend_capacity_pages": (1, 1 << 12),
    "page_size": (1, 1 << 12),
    "backend_page_size": (1, 1 << 12),
    "max_context": (1, 1 << 16),
    "max_concurrency": (1, 1 << 8),
    "hash_bits": (0, 64),
    "host_bytes": (HOST_ALIGNMENT_BYTES, 1 << 28),
    "fail_every": (0, 1 << 32),
    "lookahead": (0, MAX_LOOKAHEAD),
    "schedule_seed": (-(1 << 63), 1 << 63),
    "policy_seed": (-(1 << 63), 1 << 63),
    "page_order_seed": (0, 1 << 32),
}

#: Most positions of one pool, over all its pages: what is allocated at payload depth follows from them.
_MAX_POSITIONS = 1 << 16


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
    profile at payload depth, and of what a Host tier counts the bytes. ``poison``: what free and stale columns are
    filled with, ``nan`` or ``huge`` (a large finite value).

    ``lookahead``: requests behind a waiting head that one ``schedule`` looks at.  ``device``: where planes and tables
    are; where effects lag, on ``cuda`` its own streams take the place of the simulated device and its schedule.

    ``host_bytes``: size of the Host tier, None for an engine without one.  ``schedule``, ``schedule_seed``: who decides
    the order of effects where they lag.  ``fail_every``: every so many copies between the tiers one fails, in turn
    without and with its effect; 0 for none.  ``policy``, ``policy_seed``: which continuation yields first when room is
    made; the seed is the hostile one's.  ``page_order_seed``: every page has been used once before the example begins,
    and they were given back in an order that this draws; 0 for new pools.
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
    host_bytes: int | None = None
    schedule: str = "in-order"
    schedule_seed: int = 0
    fail_every: int = 0
    policy: str = LRU
    policy_seed: int = 0
    lookahead: int = 0
    page_order_seed: int = 0
    device: str = DEVICES[0]

    def engine_config(self) -> EngineConfig:
        """Return the engine's configuration; with a Host tier, every pool declares its planes."""
        return _config(self)

    @property
    def pools(self) -> int:
        """Number of pools."""
        return 1 if self.backend is None else 2

    @property
    def beyond_context(self) -> int:
        """Pages that Main has beyond those of one longest sequence, L = ceil(S / P); below 0 for fewer."""
        return self.capacity_pages - pages_for(self.max_context, self.page_size)

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
        if values.get("schedule", SCHEDULES[0]) not in SCHEDULES:
            raise InputError(f"unknown schedule {values['schedule']!r:.40}; known: {', '.join(SCHEDULES)}")
        if values.get("device", DEVICES[0]) not in DEVICES:
            raise InputError(f"unknown device {values['device']!r:.40}; known: {', '.join(DEVICES)}")
        if values.get("policy", LRU) not in SETTING_POLICIES:
            raise InputError(f"unknown policy {values['policy']!r:.40}; known: {', '.join(SETTING_POLICIES)}")
        if values.get("backend") not in (None, *BACKENDS):
            raise InputError(f"unknown backend {values['backend']!r:.40}; known: {', '.join(BACKENDS)}")
        for name, (least, most) in _LIMITS.items():
            if values.get(name) is not None and not least <= values[name] <= most:
                raise InputError(f"{name} is {least} to {most} in an example, found {values[name]!r:.40}")
        if (values.get("host_bytes") or 0) % HOST_ALIGNMENT_BYTES:
            raise InputError(
                f"host_bytes is a multiple of {HOST_ALIGNMENT_BYTES}, found {values['host_bytes']}"
            )
        setting = cls(**values)
        for pages, size in (
            (setting.capacity_pages, setting.page_size),
            (setting.backend_capacity_pages, setting.backend_page_size),
        ):
            if pages * size > _MAX_POSITIONS:
                raise InputError(
                    f"a pool of an example has at most {_MAX_POSITIONS} positions, found {pages} x {size}"
                )
        return setting


@lru_cache(_KEPT_CONFIGS)
def _config(setting: Setting) -> EngineConfig:
    policy = setting.policy if setting.policy in POLICIES else LRU
    sizes = [("main", setting.capacity_pages, setting.page_size)]
    if setting.backend is not None:
        sizes.append((setting.backend, setting.backend_capacity_pages, setting.backend_page_size))
    if setting.host_bytes is None:
        pools = [PoolSpec(*size) for size in sizes]
        return EngineConfig(
            tuple(pools),
            setting.max_context,
            setting.max_concurrency,
            policy=policy,
            lookahead=setting.lookahead,
        )
    profile = storage_profile(setting.profile)
    pools = [
        PoolSpec(name, capacity, page_size, (payload_planes(profile, name, page_size),))
        for name, capacity, page_size in sizes
    ]
    host = HostSpec(setting.host_bytes, HOST_ALIGNMENT_BYTES)
    return EngineConfig(
        tuple(pools), setting.max_context, setting.max_concurrency, host, policy, setting.lookahead
    )


def token_hash(bits: int | None) -> Any:
    """Return a hash of tokens that keeps ``bits`` bits."""
    if bits is None:
        return hash
    mask = (1 << bits) - 1
    return lambda token: hash(token) & mask
