"""The paged engine: submit, admit, run units, fork, cut, retain (DESIGN 4.3-4.9).

One thread owns an engine and nothing here locks (DESIGN 4.12).  Every public method either takes full effect or
raises a :class:`~kvcrucible.contract.errors.Refusal` and changes nothing; what becomes of any other error says
:mod:`kvcrucible.engine.operation`.  Pages are freed by the engine alone,
through ``finish``, ``cancel``, ``release``, the releases that making room needs, and ``progress``, behind their fence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq
from functools import partial

from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import BadArgument, StaleHandle, WrongState
from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.operations import (
    DEFAULT_IDENTITY,
    Accepted,
    Admitted,
    Hit,
    Identity,
    Progressed,
    Scheduled,
    Submit,
    UnitEnded,
    Waiting,
    WaitingKind,
    Work,
)
from kvcrucible.contract.snapshot import Touched
from kvcrucible.contract.tokens import Tokens, prefix
from kvcrucible.engine import admission, backfill, ending, guards, movement, starting, units
from kvcrucible.engine.bundle import begin_cut_bundle, end_cut_bundle
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.operation import operation
from kvcrucible.engine.pages import PageLedger
from kvcrucible.engine.policies import Policy, policy_of
from kvcrucible.engine.pool import PagePool, PoolFactory
from kvcrucible.engine.prefix import TokenHash
from kvcrucible.engine.records import Continuation, Request, Sequence, Unit, request_of
from kvcrucible.engine.room import make_room
from kvcrucible.engine.space import TAIL_COPY_LABEL
from kvcrucible.engine.spans import known_as
from kvcrucible.engine.storage.interface import HostMemory, Storage
from kvcrucible.engine.storage.null import per_pool
from kvcrucible.engine.streams import AnsweredStream, Device, ImmediateDevice, UnitFences
from kvcrucible.engine.tables import RowLeases, tables_of
from kvcrucible.engine.work import WorkCounters


class Engine:
    """A paged KV cache's control plane over one storage per pool and the streams of a device.

    ``storage``: the pool's storage on an engine of Main alone, else one for each pool in their order; None stores
    nothing.  ``device``: table uploads and tail copies go to its stream "compute", transfers to two others; None runs
    everything at once.  ``host_memory``: the bytes behind the Host tier's arena; None stores nothing.  Raises
    ``BadArgument`` where the number of storages is another, their planes are not those that the pools declare, the host
    memory is smaller than the arena, or one of memory and storages stores something and not the other.  ``policy``: who
    yields first when room is made; None builds the one that the configuration names.  ``pool`` builds the page pool of
    each specification, so that free pages may be granted in another order (:mod:`kvcrucible.engine.free_pages`).  Once
    an effect on the compute stream has failed, or could not be queued, or the device is gone, or an operation has
    stopped half done (decision 0030), every operation raises ``EngineLost``, which is no refusal (decision 0013).

    ``touched`` collects what operations changed, until whoever watches replaces its contents with
    :func:`kvcrucible.engine.observe.drain`.  ``evicted``: continuations that the last operation released to make room.
    ``acted``: the operation under way has done something that it never takes back.
    """

    def __init__(
        self,
        config: EngineConfig,
        storage: Storage | Seq[Storage] | None = None,
        device: Device | None = None,
        token_hash: TokenHash = hash,
        host_memory: HostMemory | None = None,
        policy: Policy | None = None,
        pool: PoolFactory = PagePool,
    ) -> None:
        self.config = config
        self.storages = per_pool(config, storage)
        self.device: Device = device if device is not None else ImmediateDevice()
        self.stream = AnsweredStream(self.device.stream("compute"))
        self.work = WorkCounters()
        self.touched = Touched()
        self.evicted: list[int] = []
        self.given_up: list[int] = []
        self.acted = False
        self.fences = UnitFences()
        self.pools = [pool(spec, self.fences) for spec in config.pools]
        self.ledger = PageLedger(self.pools, self.fences, self.touched)
        self.rows = RowLeases(config.max_concurrency, len(config.pools), self.touched)
        self.tables = tables_of(config, self.storages, self.stream, self.touched, self.work)
        self.cache = ContextCache(
            self.ledger,
            self.touched,
            token_hash,
            policy if policy is not None else policy_of(config),
            tiered=config.host is not None,
        )
        self.queue: OrderedDict[int, Request] = OrderedDict()
        self.sequences: dict[int, Sequence] = {}
        self.units: dict[int, Unit] = {}
        self.host = self.ledger.host = movement.host_tier(self, host_memory)
        self.active_sessions: dict[str, int] = {}
        self._next_sequence = 0
        self._next_unit = 0

    # -- admission -----------------------------------------------------------------------------------------------------

    @operation
    def submit(
        self,
        prompt: Tokens,
        max_new: int,
        session: str | None = None,
        consume: bool = False,
        identity: Identity = DEFAULT_IDENTITY,
        spans: tuple[TokenSpan, ...] = (),
    ) -> int:
        """Queue a request and return its sequence id; ``spans`` say which tokens stand for media (decision 0022).

        Raises ``BadArgument`` for an empty prompt, spans that are not in place or a negative ``max_new``,
        ``LimitExceeded`` for what can never run.
        """
        known = known_as("submit", prompt, spans)
        guards.require_growth(max_new)
        request = request_of(self._next_sequence, Submit(known, max_new, session, consume, identity))
        guards.require_placeable(request.limit, self.config.max_context, self.pools)
        sequence = self.number()
        self.queue[sequence] = request
        return sequence

    @operation
    def schedule(self) -> Scheduled:
        """Admit from the head of the queue until it is empty or its head has to wait; then let pass who may."""
        admitted: list[Admitted] = []
        while self.queue:
            head = next(iter(self.queue.values()))
            outcome = starting.admit_head(self, head)
            if isinstance(outcome, Waiting):
                admitted += backfill.admit_behind(self, head)
                return Scheduled(tuple(admitted), outcome)
            admitted.append(outcome)
        return Scheduled(tuple(admitted), None)

    @operation
    def try_admit(self, sequence: int) -> Admitted | Waiting:
        """Admit ``sequence`` if it heads the queue and fits.  Raises ``StaleHandle`` or ``WrongState`` if it is not
        queued.
        """
        request = self.queue.get(sequence)
        if request is None:
            self.require_known(sequence)
            raise WrongState(f"admit sequence {sequence}", "it is not queued", "submit a request first")
        if sequence != next(iter(self.queue)):
            return Waiting(sequence, WaitingKind.BEHIND_HEAD)
        return starting.admit_head(self, request)

    # -- execution units -----------------------------------------------------------------------------------------------

    @operation
    def begin_unit(self, work: Seq[Work]) -> int:
        """Materialise what ``work`` writes, publish the mappings, freeze the rows; return the unit's id.

        Raises the refusal of highest precedence over all works: ``StaleHandle``, ``WrongState``, ``RowInFlight``,
        ``BadArgument`` or ``LimitExceeded``.  Never lacks pages: they are reserved.
        """
        units.check(self, work)
        unit = self._next_unit
        self.units[unit] = units.begin(self, unit, work)
        self._next_unit += 1
        self.touched.units.add(unit)
        return unit

    @operation
    def end_unit(self, unit: int, commit: bool = True, accepted: Seq[Accepted] = ()) -> UnitEnded:
        """Commit or abort a unit; rows whose cancel was recorded are aborted and ended either way.

        ``accepted``: (sequence, n): of what it appends to the sequence only the first n tokens are committed.  Raises
        ``StaleHandle`` for a unit that is not in flight, ``BadArgument`` for what cannot be accepted.
        """
        record = units.check_end(self, unit, commit, accepted)
        self.acted = True
        self.touched.units.add(unit)
        cancelled = units.end(self, record, commit, dict(accepted))
        del self.units[unit]
        for sequence in cancelled:
            ending.drop(self, self.sequences[sequence])
        frontiers = tuple(
            (part.sequence, self.sequences[part.sequence].frontier)
            for part in record.parts
            if part.sequence in self.sequences
        )
        return UnitEnded(frontiers, tuple(cancelled))

    @operation
    def progress(self) -> Progressed:
        """Take note of units whose device effects are complete, end transfers whose copies are over, and free what is
        at rest; return what was noted since the last call.

        Raises ``EngineLost`` where an effect on the compute stream failed, and from then on every operation does.
        """
        self.acted = True
        self.stream.ask()
        done = self.fences.collect()
        ended = movement.end_transfers(self)
        for pool in self.pools:
            pool.collect()
        return Progressed(done, ended)

    # -- sequences -----------------------------------------------------------------------------------------------------

    @operation
    def fork(self, source: int, position: int, max_new: int, session: str | None = None) -> int:
        """Start a child that shares the first ``position`` tokens of an active or retained source, in each pool as far
        as it goes; return its id.

        Raises ``StaleHandle``, ``WrongState``, ``RowInFlight``, ``BadArgument``, ``LimitExceeded``,
        ``SessionBusy``, ``NoRow`` or ``DeviceCapacity``.
        """
        return starting.fork(self, source, position, max_new, session)

    @operation
    def truncate(self, sequence: int, position: int) -> None:
        """Cut an active sequence back to ``position`` tokens in every pool that stands above; afterwards nothing tells
        that it ever held more.

        Raises ``StaleHandle``, ``WrongState``, ``RowInFlight``, ``BadArgument``, or ``DeviceCapacity`` where shared
        pages would have to be reserved anew and do not fit.
        """
        asked = f"cut sequence {sequence} to {position}"
        record = self.active(sequence, asked)
        guards.require_idle(record, asked)
        if not 0 <= position <= record.frontier:
            raise BadArgument(
                asked, f"its committed frontier is {record.frontier}", "cut at or below the frontier"
            )
        if position == record.frontier:
            return
        need = admission.regrowth(record, position)
        dropped = [page for space in record.spaces for page in space.cut_drops(position)]
        with make_room(self, asked, need, dropped):
            cuts = begin_cut_bundle(self.pools, self.ledger, record, position)
            self.acted = True
        record.marks = self.cache.unmark_beyond(record.marks, position)
        end_cut_bundle(self.ledger, self.tables, record, cuts, self.copy_columns)
        self.cache.restamp(record.marks, record.spaces)
        record.tokens = prefix(record.tokens, position)
        record.prompt = min(record.prompt, position)
        self.touch(record)

    @operation
    def checkpoint(self, sequence: int) -> int:
        """Make the smallest committed frontier findable; return the checkpoint's id, an old one where it exists.

        Raises ``StaleHandle``, ``WrongState`` (also where some pool has no token committed) or ``RowInFlight``.
        """
        asked = f"checkpoint sequence {sequence}"
        record = self.active(sequence, asked)
        if record.smallest_frontier == 0:
            raise WrongState(asked, "no token is committed in every pool", "commit a unit first")
        guards.require_idle(record, asked)
        self.acted = True
        return self.cache.mark(record)

    @operation
    def finish(self, sequence: int, retain: bool = True) -> bool:
        """End an active sequence; return whether it stays as a continuation (False too where some pool has no token).

        Raises ``StaleHandle``, ``WrongState`` or ``RowInFlight``.
        """
        asked = f"finish sequence {sequence}"
        record = self.active(sequence, asked)
        guards.require_idle(record, asked)
        self.acted = True
        if not retain or record.smallest_frontier == 0:
            ending.drop(self, record)
            return False
        ending.deactivate(self, record)
        self.cache.retain(record)
        return True

    @operation
    def cancel(self, sequence: int) -> bool:
        """Drop a queued or active sequence; False where it is in flight and the cancel is recorded for the unit's end.

        Raises ``StaleHandle``, or ``WrongState`` for a continuation.
        """
        if self.queue.pop(sequence, None) is not None:
            return True
        record = self.active(sequence, f"cancel sequence {sequence}")
        if record.unit is None:
            self.acted = True
            ending.drop(self, record)
            return True
        record.cancel_recorded = True
        self.touched.sequences.add(sequence)
        return False

    # -- context cache -------------------------------------------------------------------------------------------------

    @operation
    def lookup(
        self, prompt: Tokens, identity: Identity = DEFAULT_IDENTITY, spans: tuple[TokenSpan, ...] = ()
    ) -> Hit | None:
        """Return what ``prompt`` would hit; changes nothing.  Raises ``BadArgument`` as :meth:`submit` does."""
        return self.cache.lookup(known_as("look up", prompt, spans), identity)

    @operation
    def release(self, continuation: int) -> None:
        """Drop a continuation.  Raises ``StaleHandle``, or ``WrongState`` where it is none or pinned."""
        kept = self._continuation(continuation, f"release {continuation}")
        if kept.pinned:
            raise WrongState(f"release {continuation}", "it is pinned", "unpin it first")
        self.acted = True
        self.cache.release(kept)

    @operation
    def pin(self, continuation: int, pinned: bool = True) -> None:
        """Protect a continuation from release, or stop doing so.  Raises ``StaleHandle`` or ``WrongState``."""
        kept = self._continuation(continuation, f"pin {continuation}")
        kept.pinned = pinned
        self.touched.continuations.add(continuation)

    @operation
    def demote(self, continuation: int, keep: bool = False) -> int:
        """Start moving a continuation's pages to Host; return the transfer's id.  ``keep`` leaves clean copies behind.

        Raises ``StaleHandle``, ``WrongState`` where it is none or nothing can move, ``BadArgument`` without a Host
        tier, or ``HostGeometry``.
        """
        return movement.demote(self, self._continuation(continuation, f"demote {continuation}"), keep)

    @operation
    def restore(self, continuation: int, keep: bool = False) -> int:
        """Start moving a continuation's pages back to Device; return the transfer's id.  ``keep`` as for demotion.

        Raises ``StaleHandle``, ``WrongState`` where it is none or nothing can move, ``BadArgument`` without a Host
        tier, or ``DeviceCapacity``.
        """
        return movement.restore(self, self._continuation(continuation, f"restore {continuation}"), keep)

    @operation
    def cancel_transfer(self, transfer: int) -> None:
        """Mark a transfer, so that ``progress`` abandons it.  Raises ``StaleHandle`` where it is over or unknown."""
        guards.require_transfer(self.host, transfer).cancel(transfer)

    # -- internals -----------------------------------------------------------------------------------------------------

    def short_of(self, need: Seq[int]) -> list[int]:
        """Return how many pages of each pool are lacking for ``need``; below 0 what is free beyond it."""
        return [pages - pool.free for pages, pool in zip(need, self.pools, strict=True)]

    def copy_columns(self, pool: int, source_page: int, destination_page: int, columns: int) -> None:
        """Queue the copy of the first ``columns`` of one physical page to another."""
        self.work.page_copies += 1
        self.work.columns_copied += columns
        copy = self.storages[pool].copy_columns
        self.stream.submit(partial(copy, pool, source_page, destination_page, columns), TAIL_COPY_LABEL)

    @property
    def next_number(self) -> int:
        """The sequence id that :meth:`number` takes next."""
        return self._next_sequence

    def number(self) -> int:
        """Return the next sequence id, which is then taken."""
        sequence = self._next_sequence
        self._next_sequence += 1
        return sequence

    def touch(self, record: Sequence) -> None:
        """Note that an active sequence and its spaces have changed."""
        self.touched.sequences.add(record.sequence)
        self.touched.spaces.update((record.sequence, space.pool) for space in record.spaces)

    def holder(self, sequence: int) -> Sequence | Continuation:
        """Return the active or retained bundle with this id."""
        active = self.sequences.get(sequence)
        return active if active is not None else self.cache.continuations[sequence]

    def require_known(self, sequence: int) -> None:
        """Refuse an id that names nothing alive; raises ``StaleHandle``."""
        if sequence in self.queue or sequence in self.sequences or sequence in self.cache.continuations:
            return
        state = "it has ended" if 0 <= sequence < self._next_sequence else "it was never given out"
        raise StaleHandle(f"use sequence {sequence}", state, "drop the handle")

    def active(self, sequence: int, asked: str) -> Sequence:
        """Return the active sequence; raises ``StaleHandle`` or ``WrongState``."""
        record = self.sequences.get(sequence)
        if record is not None:
            return record
        self.require_known(sequence)
        state, remedy = ("queued", "admit it") if sequence in self.queue else ("a continuation", "fork it")
        raise WrongState(asked, f"it is {state}", f"{remedy} first")

    def _continuation(self, continuation: int, asked: str) -> Continuation:
        kept = self.cache.continuations.get(continuation)
        if kept is None:
            self.require_known(continuation)
            raise WrongState(asked, "it is no continuation", "finish it with retain first")
        return kept
