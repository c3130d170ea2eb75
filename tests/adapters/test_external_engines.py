"""Engines named as ``package.module:factory``: how one is found and refused, and the toy of ``examples``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError, NotRunError, RefusalKind
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    EndUnit,
    Prefill,
    Schedule,
    Submit,
)
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz import campaign
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.adapters import external, registry
from kvcrucible.fuzz.adapters.external import depths_of, use_engine
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.reproduction import render, run_case, violations_of
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import ReadBack
from kvcrucible.fuzz.volume import VolumePlan, run_block

TOY, BROKEN = "examples.toy_adapter:build", "examples.toy_adapter:build_broken"

#: One row over four pages of two positions, handed out so that no two that follow lie one behind the other.
TIGHT = Setting(BROKEN, Depth.PAYLOAD, 4, 2, 6, 1, page_order_seed=4)


@pytest.fixture
def toys(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    monkeypatch.chdir(repository)
    for name in (TOY, BROKEN):
        use_engine(name)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("outside:", "", "engine 'outside:': write an engine of your own as package.module:factory"),
        ("outside.py:build", "", "no module outside.py in "),
        ("a/b:build", "", "write an engine of your own"),
        ("nowhere_at_all.inner:build", "", "no module nowhere_at_all in "),
        ("outside:build", "", "engine outside:build: outside has no build"),
        ("outside:build", "build = 3", "engine outside:build: build cannot be called"),
        (
            "outside:build",
            "1 / 0",
            "importing outside raised ZeroDivisionError: division by zero (outside.py:1)",
        ),
    ],
)
def test_a_name_that_cannot_be_used_says_why(module: Path, name: str, text: str, message: str) -> None:
    module.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"engine|module|importing") as refused:
        use_engine(name)
    assert message in str(refused.value)
    assert name not in registry.ENGINES


def test_what_a_module_lacks_is_not_run(module: Path) -> None:
    module.write_text("import nowhere_at_all\n", encoding="utf-8")
    with pytest.raises(NotRunError, match="outside needs nowhere_at_all, which is not installed"):
        use_engine("outside:build")


@pytest.mark.parametrize(
    ("text", "depth", "message"),
    [
        ("def build(setting): return None", Depth.LEDGER, "NoneType has no capabilities"),
        ("def build(setting): return setting.pages", Depth.LEDGER, "raised AttributeError: "),
        ("def build(): return None", Depth.LEDGER, "raised TypeError: "),
        ("def build(setting): return A(True)", Depth.LEDGER, "A lacks execute, snapshot, drain"),
        ("def build(setting): return C(True)", Depth.LEDGER, "raised RuntimeError: no capabilities today"),
        ("def build(setting): return D(True)", Depth.PAYLOAD, "raised SystemExit: 0"),
        ("def build(setting): return A(False)", Depth.PAYLOAD, "payload=False; use --depth ledger"),
        (
            "def build(setting): return B(True)",
            Depth.PAYLOAD,
            "B lacks write, read, attend, device_row, poison, ",
        ),
    ],
)
def test_a_factory_that_builds_no_adapter_says_why(
    module: Path, text: str, depth: Depth, message: str
) -> None:
    classes = """
from kvcrucible.contract.capabilities import Capabilities

class A:
    def __init__(self, payload):
        self.capabilities = Capabilities("a", payload=payload)

class B(A):
    execute = snapshot = drain = print

class C:
    def __init__(self, payload):
        pass

    @property
    def capabilities(self):
        raise RuntimeError("no capabilities today")

class D(B):
    @property
    def layers(self):
        raise SystemExit(0)

"""
    module.write_text(classes + text, encoding="utf-8")
    use_engine("outside:build")
    with pytest.raises(InputError, match="engine outside:build: ") as refused:
        registry.build(Setting("outside:build", depth))
    assert message in str(refused.value)


def test_a_setting_from_a_file_imports_nothing(module: Path) -> None:
    module.write_text("raise AssertionError('imported')\n", encoding="utf-8")
    with pytest.raises(InputError, match="unknown engine 'outside:build'"):
        run_case({"engine": "outside:build"}, [])
    assert "outside" not in sys.modules


@pytest.mark.parametrize(
    ("payload", "refuses", "depths"),
    [
        (True, None, (Depth.LEDGER, Depth.PAYLOAD)),
        (False, None, (Depth.LEDGER,)),
        (True, "ledger", (Depth.PAYLOAD,)),
    ],
)
def test_an_engine_says_at_which_depths_it_exists(
    module: Path, payload: bool, refuses: str | None, depths: tuple[Depth, ...]
) -> None:
    module.write_text(
        f"""
from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.errors import InputError

class A:
    capabilities, layers = Capabilities("a", host=False, payload={payload}), 1
    execute = snapshot = drain = write = read = attend = device_row = poison = run_effects = settle = print

def build(setting):
    if setting.depth == {refuses!r}:
        raise InputError("not at this depth")
    return A()
""",
        encoding="utf-8",
    )
    use_engine("outside:build")
    assert depths_of("outside:build") == depths


@pytest.mark.parametrize("raised", ["InputError", "ValueError"])
@pytest.mark.parametrize("refused_at", ["ledger payload", "payload"])
def test_an_engine_that_holds_other_profiles_than_the_default_is_driven_in_those(
    module: Path, raised: str, refused_at: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    monkeypatch.syspath_prepend(str(repository))
    module.write_text(
        f"""
from dataclasses import replace
from examples import toy_adapter
from kvcrucible.contract.errors import InputError

class Adapter(toy_adapter.ToyAdapter):
    capabilities = replace(toy_adapter.CAPABILITIES, profiles=("BF16",))

def build(setting):
    if setting.profile != "BF16" and setting.depth in {refused_at!r}:
        raise {raised}(f"no {{setting.profile}} here")
    return Adapter(setting, toy_adapter.ToyEngine)
""",
        encoding="utf-8",
    )
    name = "outside:build"
    block = run_block(VolumePlan(name, rules=5), 0, 4)
    assert (block.failure, block.seeds) == (None, 4)
    assert depths_of(name) == tuple(Depth)
    report = campaign.run(campaign.Plan(name, (Depth.LEDGER,), 2, steps=5))
    assert report.profiles() == ("BF16",)
    assert report.failure is None, report.failure
    assert external.probe(Setting(name, Depth.PAYLOAD)).capabilities.profiles == ("BF16",)


def test_what_was_found_is_not_lost_where_a_plainer_setting_is_refused(
    module: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository))
    module.write_text(
        """
from dataclasses import replace
from examples import toy_adapter
from kvcrucible.contract.errors import InputError

class Adapter(toy_adapter.ToyAdapter):
    capabilities = replace(toy_adapter.CAPABILITIES, profiles=("BF16",))

    def snapshot(self):
        if len(self.engine.free) < 5:
            raise ValueError("a bug")
        return super().snapshot()

def build(setting):
    if setting.profile != "BF16":
        raise InputError(f"no {setting.profile} here")
    return Adapter(setting, toy_adapter.ToyEngine)
""",
        encoding="utf-8",
    )
    failure = run_block(VolumePlan("outside:build"), 0, 8).failure
    assert failure is not None
    assert "a bug" in failure.violations[0].message
    assert failure.setting.profile == "BF16"


def test_an_engine_that_holds_no_profile_says_why_it_refused_the_first(module: Path) -> None:
    module.write_text("def build(setting): raise ValueError(f'no {setting.profile}')", encoding="utf-8")
    use_engine("outside:build")
    with pytest.raises(InputError, match="no FP32"):
        depths_of("outside:build")


def test_payload_depth_without_numpy_is_not_run(toys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "find_spec", lambda name: None)
    with pytest.raises(NotRunError, match="payload depth needs numpy: get it with"):
        registry.build(Setting(TOY, Depth.PAYLOAD))
    assert registry.build(Setting(TOY, Depth.LEDGER)).capabilities.engine == "toy"


def test_the_toy_holds_at_both_depths(toys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert depths_of(TOY) == (Depth.LEDGER, Depth.PAYLOAD)
    monkeypatch.setattr(campaign, "settings_for", lambda *_: st.just(replace(TIGHT, engine=TOY)))
    report = campaign.run(campaign.Plan(TOY, (Depth.PAYLOAD,), 5, steps=15, seed=3))
    assert report.failure is None, report.failure
    assert report.tally.invariants["no-stale-read"] > 0
    # As in a process of its own, that has been told of nothing but the plan.
    del registry.ENGINES[TOY]
    block = run_block(VolumePlan(TOY, rules=15), 0, 1)
    assert block.failure is None
    assert block.seeds == 1


def test_the_toy_refuses_what_it_has_no_pages_for(toys: None) -> None:
    lock = LockStep(Setting(TOY, Depth.PAYLOAD, 2, 2, 4, 2))
    for step in (Submit(run(0, 0, 4), 0), Submit(run(1, 0, 1), 0), Schedule(), BeginUnit((Prefill(0, 4),))):
        lock.step(step)
    refused = lock.step(BeginUnit((Prefill(1, 1),)))
    assert refused is not None
    assert refused.refusal is RefusalKind.DEVICE_CAPACITY
    lock.close()


def test_the_bug_of_the_toy_is_found_and_made_small(toys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "settings_for", lambda *_: st.just(TIGHT))
    report = campaign.run(campaign.Plan(BROKEN, (Depth.PAYLOAD,), 50, steps=12, seed=0))
    failure = report.failure
    assert failure is not None, "the campaign missed it"
    assert {found.invariant for found in failure.violations} == {"no-stale-read"}
    assert len(failure.steps) <= 6, failure.steps
    # It is the bug and not the adapter: the same steps hold on the toy as it is.
    assert violations_of(replace(failure.setting, engine=TOY), failure.steps) == ()

    _, text = render(failure.setting, failure.steps, failure.violations)
    assert f"use_engine({BROKEN!r})" in text
    del registry.ENGINES[BROKEN]
    exec(compile(text, "reproduction", "exec"), {})  # noqa: S102 - what the campaign has just written
    assert BROKEN in registry.ENGINES


def test_two_sequences_meet_in_one_page(toys: None) -> None:
    """The example of the guide, by hand: a write runs on from its page into the next one, which is somebody else's."""
    steps = [
        Submit(run(0, 0, 1), 4),
        Submit(run(1, 0, 1), 0),
        Schedule(),
        BeginUnit((Prefill(0, 1),)),
        EndUnit(0),
        BeginUnit((Prefill(1, 1),)),
        EndUnit(1),
        BeginUnit((Append(0, run(2, 0, 4)),)),
        EndUnit(2),
        ReadBack(),
    ]
    new = Setting(BROKEN, Depth.PAYLOAD, 5, 4, 12, 2)
    found = violations_of(new, steps)
    assert {violation.invariant for violation in found} == {"no-stale-read"}
    assert violations_of(Setting(TOY, Depth.PAYLOAD, 5, 4, 12, 2), steps) == ()
