"""The adapter of torch's ``PagedAttention``: what it translates, what it shows, and what the class itself does."""

from __future__ import annotations

from typing import Any

import pytest

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.errors import InputError, RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    Cancel,
    EndUnit,
    Finish,
    Fork,
    Operation,
    Prefill,
    Schedule,
    Scheduled,
    Submit,
    TryAdmit,
    UnitEnded,
    Value,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Snapshot, from_plain, schema, to_plain
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.adapters.registry import build
from kvcrucible.fuzz.coverage import GOALS, within_reach
from kvcrucible.fuzz.geometry import PAYLOAD_GEOMETRY
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.invariants.registry import inapplicable

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
PagedAttention: Any = pytest.importorskip("torch.nn.attention.experimental._paged_attention").PagedAttention
pytestmark = pytest.mark.torch

ENGINE = "torch-paged-attention"
SMALL = Setting(ENGINE, Depth.PAYLOAD, 4, 4, 12, 2, poison="huge")


def adapter_of(setting: Setting, paged_class: Any = PagedAttention) -> Any:
    from kvcrucible.fuzz.adapters.torch_paged import TorchPagedAdapter

    return TorchPagedAdapter(setting, PAYLOAD_GEOMETRY, paged_class)


@pytest.fixture
def adapter() -> Any:
    return adapter_of(SMALL)


def do(adapter: Any, *operations: Operation) -> Value:
    """Carry out operations that are not refused; returns the last value."""
    for operation in operations:
        outcome = adapter.execute(operation)
        assert outcome.refusal is None, (operation, outcome)
    return outcome.value


def refused(adapter: Any, operation: Operation) -> RefusalKind | None:
    """Return the refusal of an operation, having made sure that nothing changed."""
    before = adapter.snapshot()
    outcome = adapter.execute(operation)
    assert outcome.refusal is not None
    assert adapter.snapshot() == before
    return outcome.refusal


def start(adapter: Any, sequence: int, length: int, grow: int = 0) -> None:
    """Submit, admit and prefill one sequence, unit ids being the sequence ids."""
    do(adapter, Submit(run(0, 0, length), grow), Schedule(), BeginUnit((Prefill(sequence, length),)))


# -- translation -------------------------------------------------------------------------------------------------------


def test_life_of_a_sequence(adapter: Any) -> None:
    assert do(adapter, Submit(run(0, 0, 6), 2)) == 0
    assert do(adapter, Schedule()) == Scheduled((Admitted(0, AdmissionMode.COLD),))
    assert adapter.execute(BeginUnit((Prefill(0, 6),))).counters == ((2, 0, 2),)
    assert do(adapter, EndUnit(0)) == UnitEnded(((0, 6),))
    assert do(adapter, BeginUnit((Append(0, run(1, 0, 2)),)), EndUnit(1)) == UnitEnded(((0, 8),))
    assert adapter.snapshot().sequences[0].tokens == ((0, 0, 6), (1, 0, 2))
    assert adapter.execute(Finish(0, retain=True)).counters == ((0, 0, 4),)
    assert refused(adapter, Finish(0)) is RefusalKind.STALE_HANDLE


def test_pages_come_on_demand_and_their_want_is_the_classs_own_refusal(adapter: Any) -> None:
    start(adapter, 0, 12)
    do(adapter, EndUnit(0), Submit(run(0, 0, 8), 0))
    assert do(adapter, Schedule()) == Scheduled((Admitted(1, AdmissionMode.COLD),))
    assert refused(adapter, BeginUnit((Prefill(1, 8),))) is RefusalKind.DEVICE_CAPACITY
    do(adapter, BeginUnit((Prefill(1, 4),)))


def test_rows_are_waited_for_in_order(adapter: Any) -> None:
    do(adapter, *(Submit(run(0, 0, 1), 0) for _ in range(4)))
    waiting = do(adapter, Schedule())
    assert isinstance(waiting, Scheduled)
    assert waiting.waiting == Waiting(2, WaitingKind.NO_ROW)
    assert do(adapter, TryAdmit(3)) == Waiting(3, WaitingKind.BEHIND_HEAD)
    assert refused(adapter, TryAdmit(0)) is RefusalKind.WRONG_STATE
    assert do(adapter, Cancel(2), Finish(1, retain=False), TryAdmit(3)) == Admitted(3, AdmissionMode.COLD)


def test_cancel_of_a_selected_sequence_waits_for_the_end_of_its_unit(adapter: Any) -> None:
    start(adapter, 0, 5)
    assert do(adapter, Cancel(0)) is False
    assert adapter.snapshot().sequences[0].cancel_recorded
    assert refused(adapter, Finish(0)) is RefusalKind.ROW_IN_FLIGHT
    assert do(adapter, EndUnit(0)) == UnitEnded((), (0,))
    assert adapter.execute(Schedule()).counters == ((0, 0, 4),)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (Submit((), 1), RefusalKind.BAD_ARGUMENT),
        (Submit(run(0, 0, 1), -1), RefusalKind.BAD_ARGUMENT),
        (Submit(run(0, 0, 12), 1), RefusalKind.LIMIT_EXCEEDED),
        (BeginUnit(()), RefusalKind.BAD_ARGUMENT),
        (BeginUnit((Prefill(0, 6),)), RefusalKind.BAD_ARGUMENT),
        (BeginUnit((Append(0, run(0, 0, 1)),)), RefusalKind.WRONG_STATE),
        (EndUnit(3), RefusalKind.STALE_HANDLE),
        (Cancel(9), RefusalKind.STALE_HANDLE),
    ],
    ids=repr,
)
def test_refusals_follow_the_semantics_table(adapter: Any, operation: Operation, kind: RefusalKind) -> None:
    do(adapter, Submit(run(0, 0, 5), 0), Schedule())
    assert refused(adapter, operation) is kind


@pytest.mark.parametrize(
    "operation",
    [Fork(0, 1, 1), EndUnit(0, commit=False), BeginUnit((Prefill(0, 1), Prefill(1, 1)))],
    ids=repr,
)
def test_what_the_class_cannot_do_is_never_attempted(adapter: Any, operation: Operation) -> None:
    with pytest.raises(InputError, match="cannot carry out"):
        adapter.execute(operation)


def test_an_assertion_that_is_no_want_of_pages_comes_through() -> None:
    class Broken(PagedAttention):
        def reserve(self, batch_idx: Any, seq_len: Any) -> None:
            raise AssertionError("something else")

    adapter = adapter_of(SMALL, Broken)
    do(adapter, Submit(run(0, 0, 1), 0), Schedule())
    with pytest.raises(AssertionError, match="something else"):
        adapter.execute(BeginUnit((Prefill(0, 1),)))


def test_ledger_depth_and_unknown_profiles_are_refused() -> None:
    with pytest.raises(InputError, match="payload depth alone"):
        build(Setting(ENGINE))
    with pytest.raises(InputError, match="INT8"):
        build(Setting(ENGINE, Depth.PAYLOAD, profile="INT8-G64"))


# -- observation -------------------------------------------------------------------------------------------------------


def test_snapshot_is_the_classs_own_tables(adapter: Any) -> None:
    start(adapter, 0, 6)
    shown = adapter.snapshot()
    assert shown.rows[0, 0].entries == tuple(adapter.paged.page_table[0, :2].tolist())
    assert shown.rows[0, 0].inverse == ((0, 1), (1, 0))
    assert [page.device for page in shown.pages.values()] == [1, 0]
    assert shown.spaces[0, 0].pages == (0, 1)
    assert (shown.spaces[0, 0].frontier, shown.spaces[0, 0].provisional) == (0, 6)
    assert shown.free_pages == (tuple(adapter.paged.empty_pages),)
    assert shown.units[0].frozen == ((0, 0, (1, 0)),)
    # What is not the book's is read anew: a table that is tampered with shows.
    adapter.paged.page_table[1, 0] = 3
    assert adapter.snapshot().rows[0, 1].entries == (3,)
    assert adapter.snapshot().pages[4].references == 0


def test_snapshot_satisfies_the_schema(adapter: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    start(adapter, 0, 6)
    plain = to_plain(adapter.snapshot())
    jsonschema.validate(plain, schema())
    restored: Snapshot = from_plain(plain)
    assert restored == adapter.snapshot()


def test_what_cannot_be_checked_is_said(adapter: Any) -> None:
    capabilities = adapter.capabilities
    assert not capabilities.reserves
    assert not capabilities.aborts
    assert set(inapplicable(capabilities)) == {
        "host-conservation",
        "one-visible-replica",
        "replica-valid",
        "transfer-pinned",
        "publish-order",
        "protected-prefix",
        "exact-prefix-identity",
        "backend-not-ahead",
        "completion-guarantee",
    }
    assert len(capabilities.unchecked) >= 5
    assert capabilities.operations < Capabilities("everything").operations


# -- payload -----------------------------------------------------------------------------------------------------------


def _rows(positions: int, first: float) -> Any:
    shape = (positions, PAYLOAD_GEOMETRY.kv_heads, PAYLOAD_GEOMETRY.head_dim)
    return first + np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


def test_rows_come_back_through_the_table(adapter: Any) -> None:
    start(adapter, 0, 6)
    start(adapter, 1, 3)
    keys, values = _rows(6, 1.0), _rows(6, 101.0)
    adapter.write(0, 0, 1, keys[:4], values[:4])
    adapter.write(0, 4, 1, keys[4:], values[4:])
    adapter.write(1, 0, 1, _rows(3, 500.0), _rows(3, 600.0))
    k, v = adapter.read(0, 1, 6)
    np.testing.assert_array_equal(k, keys)
    np.testing.assert_array_equal(v, values)
    # The other layer is another cache.
    assert not adapter.read(0, 0, 6)[0].any()
    assert adapter.device_row(0) == (1, 0)
    assert adapter.device_row(1) == (2,)


def test_poison_reaches_the_columns_named_and_no_other(adapter: Any) -> None:
    start(adapter, 0, 6)
    (page,) = adapter.device_row(0)[1:]
    adapter.poison(page, 1, 4, 7.0)
    for layer in range(adapter.layers):
        k, v = adapter.read(0, layer, 8)
        assert (k[5:] == 7.0).all()
        assert (v[5:] == 7.0).all()
        assert not k[:5].any()


def test_a_read_beyond_the_pages_is_a_fault_and_not_some_other_row(adapter: Any) -> None:
    start(adapter, 0, 4)
    with pytest.raises(LookupError, match="too few pages"):
        adapter.read(0, 0, 5)


def test_attention_is_asked_only_over_finite_columns() -> None:
    adapter = adapter_of(Setting(ENGINE, Depth.PAYLOAD, 4, 4, 12, 2))
    start(adapter, 0, 4)
    assert adapter.attend([0], 0, np.zeros((1, 4, 4))) is None


# -- what the class does outside what the campaign can ask for (docs/adapters.md) --------------------------------------


def test_finding_a_write_without_a_page_lands_in_the_last_page() -> None:
    """A position that no page backs is looked up as page −1, which addresses the end of the cache."""
    paged = PagedAttention(3, 4, 2, device="cpu")
    paged.reserve(torch.tensor([0]), torch.tensor([12]))
    keys, values = torch.zeros(1, 1, 12, 1), torch.zeros(1, 1, 12, 1)
    nine = torch.full((1, 1, 1, 1), 9.0)
    paged.assign(torch.tensor([1]), torch.tensor([[1]]), nine, nine, keys, values)
    assert paged.page_table[1].tolist() == [-1, -1, -1]
    assert keys.flatten().nonzero().flatten().tolist() == [9], "row 0 owns that position"


def test_finding_a_mask_for_a_part_of_the_rows_masks_by_the_wrong_row() -> None:
    """``batch_idx`` chooses the block indices; the mask function goes on counting rows from 0."""
    paged = PagedAttention(4, 4, 2, device="cpu")
    for row in (0, 1):
        paged.reserve(torch.tensor([row]), torch.tensor([4]))
    from torch.nn.attention.flex_attention import BlockMask

    logical = BlockMask.from_kv_blocks(
        torch.ones(1, 1, 1, dtype=torch.int32),
        torch.arange(4, dtype=torch.int32)[None, None, None],
        BLOCK_SIZE=(4, 4),
        seq_lengths=(1, 16),
    )
    mask = paged.convert_logical_block_mask(logical, torch.tensor([1]), torch.tensor([4]))
    page = int(mask.kv_indices[0, 0, 0, 0])
    assert page == int(paged.page_table[1, 0])
    zero = torch.tensor(0)
    shown = [bool(mask.mask_mod(zero, zero, zero, torch.tensor(page * 4 + column))) for column in range(4)]
    assert shown == [False] * 4, "every position of row 1's own page is masked out"


def test_goals_within_reach_are_those_of_what_it_can_do(adapter: Any) -> None:
    reach = {name for name, goal in GOALS.items() if within_reach(goal, adapter.capabilities)}
    assert {"capacity-at-demand", "two-units-in-flight", "wait-no-row"} <= reach
    assert not {"abort-returns-pages", "admit-fork", "release-under-pressure", "cut-to-0"} & reach
    assert all(within_reach(goal, Capabilities("everything")) for goal in GOALS.values())
