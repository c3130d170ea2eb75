"""The campaign on torch's ``PagedAttention``: it holds but for the ledger, and planted faults are found under it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcrucible.contract.operations import BeginUnit, Prefill, Schedule, Submit
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz import campaign, lockstep
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.adapters import registry
from kvcrucible.fuzz.geometry import PAYLOAD_GEOMETRY
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import Depth, Setting

torch = pytest.importorskip("torch")
PagedAttention: Any = pytest.importorskip("torch.nn.attention.experimental._paged_attention").PagedAttention
pytestmark = pytest.mark.torch

ENGINE = "torch-paged-attention"


class Mended(PagedAttention):
    """``erase`` clears the mapping back where it stands."""

    def erase(self, batch_idx: Any) -> None:
        pages = self.page_table[batch_idx]
        super().erase(batch_idx)
        self.physical_to_logical[batch_idx[:, None], pages[pages != -1]] = -1


class HandsOutTwice(PagedAttention):
    def reserve(self, batch_idx: Any, seq_len: Any) -> None:
        first = self.empty_pages[-1:]
        super().reserve(batch_idx, seq_len)
        if int(batch_idx) and int(self.capacity[batch_idx]) and first and first[0] not in self.empty_pages:
            self.empty_pages = [*first, *self.empty_pages]


class MapsBackOneOff(PagedAttention):
    def reserve(self, batch_idx: Any, seq_len: Any) -> None:
        super().reserve(batch_idx, seq_len)
        mapped = self.page_table[batch_idx][0]
        if int(mapped[1]) != -1:
            self.physical_to_logical[batch_idx, mapped[1]] = 0


class WritesOneColumnOff(PagedAttention):
    def assign(self, batch_idx: Any, input_pos: Any, *rest: Any) -> None:
        super().assign(batch_idx, input_pos + 1, *rest)


class TakesBeforeItRefuses(PagedAttention):
    def reserve(self, batch_idx: Any, seq_len: Any) -> None:
        empty = list(self.empty_pages)
        try:
            super().reserve(batch_idx, seq_len)
        except AssertionError:
            self.empty_pages = empty[:-1]
            raise


class KeepsRowAtErase(PagedAttention):
    def erase(self, batch_idx: Any) -> None:
        mapped = self.page_table[batch_idx].clone()
        super().erase(batch_idx)
        self.page_table[batch_idx] = mapped


class ConvertsOtherRow(PagedAttention):
    def convert_logical_block_mask(self, block_mask: Any, batch_idx: Any = None, kv_len: Any = None) -> Any:
        return super().convert_logical_block_mask(block_mask, None, kv_len)


class ScoresBeyondTheEnd(Mended):
    """The score function forgets the length, so stale columns of the last page count."""

    def get_score_mod(self, score_mod: object, kv_len: Any = None) -> object:
        return super().get_score_mod(score_mod, None)


FAULTS: dict[type[Any], set[str]] = {
    HandsOutTwice: {"lease-unique", "pool-conservation"},
    MapsBackOneOff: {"table-mirror"},
    WritesOneColumnOff: {"no-stale-read", "engine-fault"},
    KeepsRowAtErase: {"table-mirror", "refcount-exact", "pool-conservation"},
    ConvertsOtherRow: {"table-mirror"},
    ScoresBeyondTheEnd: {"kernel-oracle"},
}


def _use(monkeypatch: pytest.MonkeyPatch, paged_class: type[Any]) -> None:
    from kvcrucible.fuzz.adapters.torch_paged import TorchPagedAdapter

    def build(setting: Setting) -> TorchPagedAdapter:
        return TorchPagedAdapter(setting, PAYLOAD_GEOMETRY, paged_class)

    monkeypatch.setitem(registry.ENGINES, ENGINE, build)


#: One setting instead of drawn ones, so that a fault is found and shrunk within a few seconds.
TIGHT = Setting(ENGINE, Depth.PAYLOAD, 3, 4, 12, 2, poison="huge")


def _run(monkeypatch: pytest.MonkeyPatch, examples: int, *, attention: bool = True) -> campaign.Report:
    """Run a short campaign; without ``attention`` (free columns hold NaN) it is some ten times as fast."""
    setting = TIGHT if attention else replace(TIGHT, poison="nan")
    monkeypatch.setattr(campaign, "settings_for", lambda *_: st.just(setting))
    return campaign.run(campaign.Plan(ENGINE, (Depth.PAYLOAD,), examples, steps=30, seed=3))


def test_holds_but_for_the_known_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    report = _run(monkeypatch, 25)
    assert report.failure is None, report.failure
    assert report.tally.refusals["device-capacity"] > 0
    assert report.tally.invariants["kernel-oracle"] > 0
    assert report.tally.waived["torch-erase-keeps-mapping-back"] > 0
    # What the class cannot break is not counted as judged.
    assert "cow-isolation" not in report.tally.invariants
    assert "token-exact-truncation" not in report.tally.invariants


def test_holds_without_any_waiver_once_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, Mended)
    monkeypatch.setattr(lockstep, "waivers_of", lambda engine: ())
    report = _run(monkeypatch, 25)
    assert report.failure is None, report.failure
    assert report.tally.invariants["kernel-oracle"] > 0
    assert not report.tally.waived


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_are_found_in_spite_of_the_waivers(
    fault: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        _use(broken, fault)
        report = _run(broken, 100, attention="kernel-oracle" in FAULTS[fault])
        assert report.failure is not None, "the campaign missed it"
    found = {violation.invariant for violation in report.failure.violations}
    assert found & FAULTS[fault], found
    # What was found is the fault and not the engine: the same steps hold on the class as it is.
    assert violations_of(report.failure.setting, report.failure.steps) == ()


def test_a_refusal_that_takes_pages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given steps and not a campaign: want of pages takes long to shrink."""
    steps = [
        Submit(run(0, 0, 1), 0),
        Submit(run(0, 0, 12), 0),
        Schedule(),
        BeginUnit((Prefill(0, 1),)),
        BeginUnit((Prefill(1, 12),)),
    ]
    assert violations_of(TIGHT, steps) == ()
    _use(monkeypatch, TakesBeforeItRefuses)
    assert "refusal-atomic" in {violation.invariant for violation in violations_of(TIGHT, steps)}
