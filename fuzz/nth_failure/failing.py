"""Parts of an engine that ask a gate before they do their work: pools, slots, a device and its streams, a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvcrucible.contract.errors import DeviceCapacity, HostGeometry
from kvcrucible.engine.host.slots import HostSlot, HostSlots
from kvcrucible.engine.host.transfer import COPY_LABEL
from kvcrucible.engine.policies import Policy
from kvcrucible.engine.pool import Lease, PagePool, Reservation
from kvcrucible.engine.space import TAIL_COPY_LABEL
from kvcrucible.engine.streams.interface import Completion, Device, DeviceStream, Effect, EffectFailed, Event
from kvcrucible.engine.tables import UPLOAD_LABEL
from kvcrucible.fuzz.nth_failure.sites import Gate, Site

#: What every injected failure says.
INJECTED = "injected by the n-th failure"


#: Where a policy raises that is asked for an order, which it is only before anything is done for whoever needs it.
ORDER_ASKED = "policy, order"


class UnforeseenError(Exception):
    """An error of a kind that the engine knows nothing of; ``where`` says what raises it."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: {INJECTED}")
        self.where = where


class FailingPool(PagePool):
    """A pool whose promises and grants pass the gate."""

    def __init__(self, gate: Gate, *args: Any) -> None:
        super().__init__(*args)
        self._gate = gate

    def extend(self, reservation: Reservation, pages: int) -> None:
        """Promise pages, or fail."""
        if pages and self._gate.fails(Site.PROMISE):
            raise DeviceCapacity(f"{pages} pages", INJECTED, "try again")
        super().extend(reservation, pages)

    def materialise(self, reservation: Reservation, pages: int) -> list[Lease]:
        """Grant promised pages, or fail."""
        if pages and self._gate.fails(Site.GRANT):
            raise DeviceCapacity(f"{pages} promised pages", INJECTED, "try again")
        return super().materialise(reservation, pages)


class FailingSlots(HostSlots):
    """Slots whose extents pass the gate."""

    def __init__(self, gate: Gate, slots: HostSlots) -> None:
        super().__init__(slots.arena, slots.page_bytes)
        self._gate = gate

    def reserve(
        self, pages: Sequence[int], make_room: Callable[[], None] | None = None
    ) -> list[list[HostSlot]]:
        """Give out extents, or fail."""
        if any(pages) and self._gate.fails(Site.EXTENT):
            raise HostGeometry(f"extents for {list(pages)} pages", INJECTED, "try again")
        return super().reserve(pages, make_room)


class FailingStream:
    """One stream of a :class:`FailingDevice`; effects fail by what they are, in the order in which they are queued."""

    def __init__(self, gate: Gate, inner: DeviceStream, goes_down: Callable[[Effect], bool]) -> None:
        self._gate, self._inner, self._goes_down = gate, inner, goes_down

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._inner.name

    def submit(self, effect: Effect, label: str = "") -> None:
        """Queue ``effect``, or one that fails in its place, or fail."""
        self._inner.submit(self._instead(effect, label) or effect, label)

    def _instead(self, effect: Effect, label: str) -> Effect | None:
        gate = self._gate
        if label.startswith(COPY_LABEL):
            transfer = int(label.removeprefix(COPY_LABEL))
            if gate.fails(Site.COPY_QUEUE, transfer):
                raise EffectFailed(f"{label} cannot be queued: {INJECTED}")
            if gate.fails(Site.COPY_ERROR):
                raise UnforeseenError(label)
            site = Site.COPY_DOWN if self._goes_down(effect) else Site.COPY_UP
            return partial(_fail, label) if gate.fails(site, transfer) else None
        if gate.fails(Site.COMPUTE_QUEUE):
            raise EffectFailed(f"{label} cannot be queued: {INJECTED}")
        if gate.fails(Site.EFFECT_ERROR):
            raise UnforeseenError(label)
        site = {TAIL_COPY_LABEL: Site.TAIL_COPY, UPLOAD_LABEL: Site.TABLE_UPLOAD}[label]
        return partial(_fail, label) if gate.fails(site) else None

    def record(self) -> Completion:
        """Return an event for everything submitted so far."""
        return self._inner.record()

    def wait(self, event: Event) -> None:
        """Run nothing that is submitted later before the device has reached ``event``."""
        self._inner.wait(event)

    def synchronize(self) -> None:
        """Run or await everything submitted so far."""
        self._inner.synchronize()

    def look(self) -> EffectFailed | None:
        """Take note of how far the device has come; return why nothing more will come of it."""
        return self._inner.look()


class FailingDevice:
    """``inner``, whose effects pass the gate.  ``goes_down`` tells of a copy between the tiers whether it leaves the
    Device.
    """

    def __init__(self, gate: Gate, inner: Device, goes_down: Callable[[Effect], bool]) -> None:
        self._gate, self._inner, self._goes_down = gate, inner, goes_down
        self._streams: dict[str, FailingStream] = {}

    def stream(self, name: str) -> FailingStream:
        """Return the stream called ``name``."""
        if name not in self._streams:
            self._streams[name] = FailingStream(self._gate, self._inner.stream(name), self._goes_down)
        return self._streams[name]

    def synchronize(self) -> None:
        """Run or await everything submitted so far, on every stream."""
        self._inner.synchronize()


def let_fail(gate: Gate, policy: Policy) -> None:
    """Let everything that ``policy`` is asked or told pass the gate first.  Mutates this one object, so that it stays
    of the kind by which the engine knows it.
    """

    def gated(name: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def called(argument: Any) -> Any:
            if gate.fails(Site.POLICY_ERROR):
                raise UnforeseenError(ORDER_ASKED if name == "order" else f"policy, {name}")
            return method(argument)

        return called

    for name in ("order", "used", "yields", "gone"):
        setattr(policy, name, gated(name, getattr(policy, name)))


def _fail(label: str) -> None:
    raise EffectFailed(f"{label} did not take place: {INJECTED}")
