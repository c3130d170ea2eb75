"""The adapter of the toy engine: all that it takes to put an engine under test.  From the folder above this one:

kvcrucible fuzz --engine examples.toy_adapter:build           the toy as it is
kvcrucible fuzz --engine examples.toy_adapter:build_broken    the toy with a bug, found and made small
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from examples.toy_engine import BrokenToyEngine, Rows, ToyEngine
from kvcrucible.contract import operations as op
from kvcrucible.contract.capabilities import ALL_PARTS, Capabilities
from kvcrucible.contract.errors import DeviceCapacity, InputError, Refusal
from kvcrucible.contract.operations import Operation, Outcome, Value
from kvcrucible.contract.snapshot import PageState, PoolState, RowState, Snapshot, SpaceState
from kvcrucible.fuzz.adapters.book import Book
from kvcrucible.fuzz.geometry import PAYLOAD_GEOMETRY
from kvcrucible.fuzz.setting import Setting

CAPABILITIES = Capabilities(
    "toy",
    operations=frozenset({"Submit", "TryAdmit", "Schedule", "BeginUnit", "EndUnit", "Finish", "Cancel"}),
    reserves=False,
    aborts=False,
    speculates=False,
    works_per_unit=1,
    backends=frozenset(),
    profiles=("FP32",),
    host=False,
    backfills=False,
    snapshot_parts=ALL_PARTS - {"checkpoints", "findable"},
    unchecked=(
        "queue, ids, frontiers, tokens, units and all refusals but want of pages are the adapter's own",
    ),
)


class ToyAdapter:
    """One engine for one example; the book keeps the queue, ids and frontiers that the engine has no notion of."""

    capabilities = CAPABILITIES
    layers = PAYLOAD_GEOMETRY.layers

    def __init__(self, setting: Setting, engine_class: type[ToyEngine]) -> None:
        shape = (self.layers, PAYLOAD_GEOMETRY.kv_heads, PAYLOAD_GEOMETRY.head_dim)
        self.engine = engine_class(setting.capacity_pages, setting.page_size, setting.max_concurrency, *shape)
        if setting.page_order_seed:  # as if every page had been used before, and come back in this order
            Random(setting.page_order_seed).shuffle(self.engine.free)
        self.book = Book(setting.engine_config())

    def execute(self, operation: Operation) -> Outcome:
        """Carry out one operation; a refusal is an outcome, any other exception a finding."""
        try:
            return Outcome(self._carry_out(operation), None, (), (self._counters(),))
        except Refusal as refusal:
            return Outcome(None, refusal.kind, (), (self._counters(),))

    def _carry_out(self, operation: Operation) -> Value:
        ended: int | None  # the row to erase
        value: Value
        match operation:
            case op.Submit():
                return self.book.submit(operation)
            case op.TryAdmit(sequence=sequence):
                return self.book.try_admit(sequence)
            case op.Schedule():
                return self.book.schedule()
            case op.BeginUnit(work=work):
                unit = self.book.plan(work)
                try:
                    self.engine.grow(unit.row, unit.stop)
                except MemoryError as error:
                    raise DeviceCapacity(f"{unit.stop} positions", str(error), "end a sequence") from error
                return self.book.begin(unit, tuple(self.engine.table[unit.row]))
            case op.EndUnit(unit=number):
                value, ended = self.book.end(number)
            case op.Finish(sequence=sequence):
                value, ended = False, self.book.finish(sequence)  # False: nothing is retained
            case op.Cancel(sequence=sequence):
                value, ended = self.book.cancel(sequence)
            case _:
                raise InputError(f"the toy has no {operation!r}")
        if ended is not None:
            self.engine.erase(ended)
        return value

    def _counters(self) -> tuple[int, int, int]:
        """Leased, reserved and free pages, each as the engine keeps it."""
        return sum(map(len, self.engine.table)), 0, len(self.engine.free)

    def snapshot(self) -> Snapshot:
        """Show the engine's tables; a logical page is a block of a row, numbered row by row."""
        engine, size = self.engine, self.engine.page_size
        found = Snapshot((PoolState("main", size, engine.pages, *self._counters()),), queue=self.book.queue)
        owners = self.book.owners()
        for row, table in enumerate(engine.table):
            owner, ids = owners.get(row), range(row * engine.pages, row * engine.pages + len(table))
            found.rows[0, row] = RowState(0, row, owner, tuple(table))
            frontier = 0
            if owner is not None:
                frontier, provisional = self.book.reach(owner)
                found.spaces[owner, 0] = SpaceState(owner, 0, tuple(ids), frontier, provisional)
                found.sequences[owner] = self.book.sequence_state(owner)
            for block, (page, device) in enumerate(zip(ids, table, strict=True)):
                committed = min(max(frontier - block * size, 0), size)
                found.pages[page] = PageState(page, 0, 0, committed, int(owner is not None), device, -1)
        return replace(found, units=self.book.unit_states(), free_pages=(tuple(engine.free),))

    def drain(self) -> None:
        """The engine does not tell what it touched: states are compared instead."""

    # -- payload depth: rows are written and read back through the engine's own paths --------------------------------

    def write(self, sequence: int, start: int, layer: int, keys: Rows, values: Rows, pool: int = 0) -> None:
        """Write rows of a sequence that a unit has selected."""
        self.engine.write(layer, self.book.row(sequence), start, keys, values)

    def read(self, owner: int, layer: int, stop: int, pool: int = 0) -> tuple[Rows, Rows]:
        """Return the first ``stop`` rows of a sequence."""
        return self.engine.read(layer, self.book.row(owner), stop)

    def poison(self, page: int, first: int, stop: int, value: float, pool: int = 0) -> None:
        """Fill columns of a page, so that whoever reads what is not theirs is seen."""
        begin = page * self.engine.page_size
        self.engine.cells[:, :, begin + first : begin + stop] = value

    def attend(self, owners: Sequence[int], layer: int, queries: Rows, pool: int = 0) -> None:
        """The engine has no attention."""

    def device_row(self, sequence: int, pool: int = 0) -> None:
        """There is no second table on a device."""

    def run_effects(self, count: int) -> int:
        """Everything takes place at once."""
        return 0

    def settle(self) -> None:
        """Everything has taken place."""


def build(setting: Setting) -> ToyAdapter:
    """Return the toy for one example."""
    return ToyAdapter(setting, ToyEngine)


def build_broken(setting: Setting) -> ToyAdapter:
    """Return the toy that looks a page up once for each write."""
    return ToyAdapter(setting, BrokenToyEngine)
