"""What foreign engines do wrong by themselves: they raise, end the process, answer something else, refuse settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError, OutputFailed
from kvcrucible.contract.operations import (
    BeginUnit,
    Demote,
    EndUnit,
    Finish,
    Prefill,
    Schedule,
    Submit,
)
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.adapters import external, registry
from kvcrucible.fuzz.adapters.external import use_engine
from kvcrucible.fuzz.adapters.paged import PagedAdapter
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.raw import draw_seed
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects
from kvcrucible.fuzz.volume import VolumePlan, conditions_of, run_volume

FAILING = """
from examples.toy_adapter import build as toy

class Fails:
    def __init__(self, setting, where, error):
        self._inner, self._where, self._error, self._asked = toy(setting), where, error, 0

    def __getattr__(self, name):
        method = getattr(self._inner, name)
        if name != self._where:
            return method

        def fails(*args, **kwargs):
            # The first answer is that to whoever starts the example.
            self._asked += 1
            if name in ("snapshot", "drain") and self._asked == 1:
                return method(*args, **kwargs)
            raise self._error

        return fails
"""


@pytest.mark.parametrize(
    "text",
    ["import sys\nsys.exit(0)\n", "def build(setting): raise SystemExit(0)\n"],
    ids=["module", "factory"],
)
def test_a_module_or_factory_that_ends_the_process_has_failed(module: Path, text: str) -> None:
    module.write_text(text, encoding="utf-8")

    def used() -> None:
        use_engine("outside:build")
        registry.build(Setting("outside:build"))

    with pytest.raises(InputError, match=r"raised SystemExit: 0 \(outside\.py:"):
        used()


@pytest.mark.parametrize("error", ["SystemExit(0)", "AssertionError('wrong inside')"])
@pytest.mark.parametrize("where", ["execute", "snapshot", "drain", "write", "run_effects", "read", "attend"])
def test_an_engine_that_ends_the_process_or_falls_over_has_failed(
    module: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: str
) -> None:
    pytest.importorskip("numpy")
    monkeypatch.syspath_prepend(repository)
    build = f"def build(setting): return Fails(setting, {where!r}, {error})\n"
    module.write_text(f"{FAILING}\n{build}", encoding="utf-8")
    use_engine("outside:build")
    setting = Setting("outside:build", Depth.PAYLOAD, 5, 4, 12, 2)
    unit = (BeginUnit((Prefill(0, 4),)), RunEffects(1), EndUnit(0))
    steps = [Submit(run(0, 0, 4), 0), Schedule(), *unit, ReadBack()]
    found = violations_of(setting, steps)
    assert [one.invariant for one in found] == ["engine-fault"]
    assert f"{error.partition('(')[0]}: " in found[0].message
    assert "(outside.py:" in found[0].message


def test_the_end_of_the_command_is_no_fault_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that nobody reads any more, met while an engine is asked, ends the command by its own status."""
    lock = LockStep(Setting())

    def closed(operation: object) -> None:
        raise OutputFailed(BrokenPipeError())

    monkeypatch.setattr(lock.adapter, "execute", closed)
    with pytest.raises(OutputFailed):
        lock.step(Schedule())
    registry.ENGINES["outside:build"] = external._checked("outside:build", closed)  # type: ignore[arg-type]
    with pytest.raises(OutputFailed):
        registry.build(Setting("outside:build"))


PARTICULAR = """
from examples.toy_adapter import ToyAdapter, ToyEngine
from kvcrucible.contract.errors import InputError

class Leaks(ToyEngine):
    def erase(self, row):
        if self.table[row]:
            self.table[row].pop()
        super().erase(row)

class FallsOver(ToyEngine):
    def grow(self, row, stop):
        if self.page_size == 4 and self.pages < 4:
            raise RuntimeError("tiny pages")
        return super().grow(row, stop)

    def erase(self, row):
        if len(self.table[row]) > 1:
            raise ZeroDivisionError("a row of several pages")
        super().erase(row)

def falls_over(setting):
    return ToyAdapter(setting, FallsOver)

def leaks(setting):
    if setting.capacity_pages < 2:
        raise InputError("this engine keeps a null page; give it two pages or more")
    return ToyAdapter(setting, Leaks)
"""


@pytest.fixture
def particular(module: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(repository)
    module.write_text(PARTICULAR, encoding="utf-8")


@pytest.mark.usefixtures("particular")
def test_what_an_engine_refuses_to_be_does_not_cost_the_finding() -> None:
    """Shrinking tries plainer settings, and a factory may refuse them."""
    use_engine("outside:leaks")
    failure = run_volume(VolumePlan("outside:leaks", 1, 20, rules=20)).failure
    assert failure is not None
    assert failure.violations[0].invariant == "pool-conservation"
    assert failure.setting.capacity_pages >= 2
    assert violations_of(failure.setting, failure.steps)


@pytest.mark.usefixtures("particular")
def test_a_seed_that_needs_a_refused_setting_is_named() -> None:
    use_engine("outside:leaks")
    refused = next(
        seed
        for seed in range(200)
        if draw_seed(seed, conditions_of(VolumePlan("outside:leaks")))[0].setting.capacity_pages == 1
    )
    with pytest.raises(InputError, match=rf"null page.*\(seed {refused}, which needs Setting\("):
        run_volume(VolumePlan("outside:leaks", refused, 1))


@pytest.mark.usefixtures("particular")
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_one_error_is_not_shrunk_to_another(seed: int) -> None:
    use_engine("outside:falls_over")
    failure = run_volume(VolumePlan("outside:falls_over", seed, 20, rules=30)).failure
    assert failure is not None
    assert "ZeroDivisionError" in failure.first_seen[0].message
    assert "ZeroDivisionError" in failure.violations[0].message


@pytest.mark.parametrize(
    ("where", "answer", "due"),
    [
        ("execute", "None", "a NoneType, and not an Outcome"),
        ("snapshot", "{}", "a dict, and not a Snapshot"),
        ("drain", "7", "a int, and not None"),
        ("drain", "(1, 2)", "a tuple, and not None"),
    ],
)
def test_an_answer_of_another_kind_is_a_fault_of_the_engine(
    module: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, where: str, answer: str, due: str
) -> None:
    monkeypatch.syspath_prepend(repository)
    text = f"""
from examples.toy_adapter import build as toy

def build(setting):
    adapter = toy(setting)
    adapter.{where} = lambda *_: {answer}
    return adapter
"""
    module.write_text(text, encoding="utf-8")
    use_engine("outside:build")
    found = violations_of(Setting("outside:build"), [Submit(run(0, 0, 4), 0)])
    assert [one.invariant for one in found] == ["engine-fault"]
    assert due in found[0].message


def test_a_host_tier_that_does_not_show_its_holes_is_a_fault_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = PagedAdapter.snapshot
    monkeypatch.setattr(PagedAdapter, "snapshot", lambda self: replace(shown(self), host_holes=None))
    unit = (BeginUnit((Prefill(0, 4),)), EndUnit(0))
    steps = [Submit(run(0, 0, 4), 0), Schedule(), *unit, Finish(0), Demote(0)]
    found = violations_of(Setting(capacity_pages=5, host_bytes=1 << 16), steps)
    assert "engine-fault" in [one.invariant for one in found]
    assert any("holes of its Host tier" in one.message for one in found)
