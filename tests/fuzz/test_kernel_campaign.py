"""Kernel campaigns: what they cover, that they hold on what is right, and find what is planted."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.fuzz.faults.catalogue import kernel_catalogue, source_of
from kvcrucible.fuzz.kernels.cells import (
    CLASSES,
    KERNELS,
    Cell,
    all_cells,
    lengths_of,
    pairwise,
    uncovered_pairs,
)

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FAULTS = list(kernel_catalogue().values())

#: The faults whose campaigns the fast tests run.
FAST = ("copy-whole-page", "plan-drops-split")


def test_cells_are_every_combination() -> None:
    cells = all_cells()
    assert len(cells) == len(set(cells)) == len(KERNELS) * 6 * 2 * len(CLASSES)
    assert sorted(n for name in CLASSES for n in lengths_of(name)) == list(range(301))


def test_few_cells_hold_every_pair() -> None:
    cells = all_cells()
    few = pairwise(cells, 3)
    assert len(few) < len(cells) / 5
    assert uncovered_pairs(cells, Counter(few)) == 0
    assert uncovered_pairs(cells, Counter(few[:-1])) > 0


def test_a_case_survives_being_written_and_hostile_ones_are_refused(tmp_path: Path) -> None:
    from kvcrucible.fuzz.kernels.cases import Case, read_case

    case = Case(
        Cell("decode", "BF16", "page-major", "1"), (1,), (1,), 64, 2, 2, 16, "float32", "nan", 1, 0, 0, False
    )
    path = tmp_path / "case.json"
    path.write_text(case.to_json(), "utf-8")
    assert read_case(path) == case
    plain = json.loads(case.to_json())
    of_a_list = {"cell": {**plain["cell"], "profile": []}}
    for change, said in (
        ({"lengths": [10**9]}, "out of range up to 4,096"),
        ({"lengths": [1, 1]}, "unknown names"),
        ({"cell": {}}, "not a case"),
        (of_a_list, "not a case"),
        ({"page_size": "64"}, "out of range"),
        ({"more": 1}, "not a case"),
    ):
        path.write_text(json.dumps(plain | change), "utf-8")
        with pytest.raises(InputError, match=f"{said}.*; give a case as a kernel campaign wrote it"):
            read_case(path)
    for text, said in (("[]", "not a case"), ("{", "not JSON"), (" " * 70_000, "more than 65,536 bytes")):
        path.write_text(text, "utf-8")
        with pytest.raises(InputError, match=said):
            read_case(path)


@pytest.mark.parametrize("target", ["cpu", "torch"])
def test_a_small_campaign_holds_and_covers_its_cells(target: str) -> None:
    from kvcrucible.fuzz.kernels.backends import TARGETS, why_not
    from kvcrucible.fuzz.kernels.campaign import run

    reason = why_not(TARGETS[target])
    if reason is not None:
        pytest.skip(reason)
    report = run(TARGETS[target], pairwise(all_cells(), 0), 1, 0)
    assert report.failure is None, report.failure
    assert report.uncovered == []
    assert set(report.by_kernel_and_profile()) == set(
        product(KERNELS, {cell.profile for cell in all_cells()})
    )


def test_a_campaign_that_runs_out_of_time_says_what_it_left_out() -> None:
    from kvcrucible.fuzz.kernels.backends import TARGETS
    from kvcrucible.fuzz.kernels.campaign import run

    report = run(TARGETS["torch"], all_cells(["copy"], ["FP32"]), 1, 0, seconds=0.0)
    assert report.cut_short
    assert len(report.uncovered) > 0


def test_what_libraries_print_does_not_spoil_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvcrucible.fuzz.kernels import campaign, child

    def talkative(target: Any, wanted: Any, *rest: Any, **more: Any) -> campaign.KernelReport:
        print("WARNING: this takes long")
        assert more == {"shrink": False}
        return campaign.KernelReport(target.name, 0, wanted)

    monkeypatch.setattr(campaign, "run", talkative)
    assert child.main(["none", "torch", "--kernel", "copy", "--length", "1", "--no-shrink"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["cells"] == 12
    assert "takes long" in printed.err


def test_statuses_of_several_targets() -> None:
    from kvcrucible.contract.errors import ExitStatus
    from kvcrucible.fuzz.kernels.run import status_of

    def report(**changes: Any) -> dict[str, Any]:
        return {"failure": None, "not_run": None, "cut_short": False} | changes

    missing, failed = report(not_run="no device"), report(failure={})
    assert status_of([missing]) == ExitStatus.NOT_RUN
    assert status_of([missing, report()]) == ExitStatus.HELD
    assert status_of([report(cut_short=True), report()]) == ExitStatus.INCONCLUSIVE
    assert status_of([report(cut_short=True), failed, missing]) == ExitStatus.VIOLATION


def test_without_a_device_nothing_is_run_and_said_to_hold() -> None:
    import torch

    from kvcrucible.fuzz.kernels.backends import TARGETS
    from kvcrucible.fuzz.kernels.run import KernelPlan, run_target

    if torch.cuda.is_available():
        pytest.skip("there is a device")
    report = run_target(TARGETS["cuda"], KernelPlan())
    assert report["not_run"]
    assert report["examples"] == 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_every_fault_matches_its_source_and_names_invariants(fault: Any) -> None:
    from kvcrucible.invariants.judgements import ENGINE_FAULT
    from kvcrucible.invariants.registry import INVARIANTS

    assert fault.apply_to(source_of(fault.module)) != source_of(fault.module)
    assert set(fault.expects) <= {*INVARIANTS, ENGINE_FAULT}
    assert fault.sought is not None
    assert set(fault.sought.kernels) <= set(KERNELS)
    assert set(fault.sought.profiles) <= set(PROFILES)
    assert set(fault.sought.lengths) <= set(CLASSES)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[] if fault.id in FAST else [pytest.mark.slow]) for fault in FAULTS],
    ids=lambda fault: fault.id,
)
def test_a_planted_fault_is_found(fault: Any) -> None:
    from kvcrucible.fuzz.kernels.backends import why_not
    from kvcrucible.fuzz.kernels.run import KernelPlan, run_target, target_of

    target, sought = target_of(fault), fault.sought
    reason = why_not(target)
    if reason is not None:
        pytest.skip(reason)
    where = {"kernels": sought.kernels, "profiles": sought.profiles, "lengths": sought.lengths}
    report = run_target(target, KernelPlan(4, 0, fault=fault.id, shrink=False, **where))
    assert report["failure"] is not None, report
    found = {violation["invariant"] for violation in report["failure"]["violations"]}
    assert found & set(fault.expects), report["failure"]


@pytest.mark.slow
def test_every_cell_holds_on_the_interpreter() -> None:
    from kvcrucible.fuzz.kernels.backends import TARGETS, why_not
    from kvcrucible.fuzz.kernels.run import KernelPlan, run_target

    reason = why_not(TARGETS["interpreter"])
    if reason is not None:
        pytest.skip(reason)
    report = run_target(TARGETS["interpreter"], KernelPlan(2, 0))
    assert report["failure"] is None, report["failure"]
    assert report["uncovered_cells"] == []
    assert report["fewest_by_kernel_and_profile"] >= 20
