"""Plain data in words leaves out defaults and nothing else."""

from __future__ import annotations

import pytest

from kvcrucible.contract.extras import install_command, install_remedy
from kvcrucible.contract.in_words import in_words
from kvcrucible.contract.operations import Append, BeginUnit, EndUnit, Identity, Schedule, Submit
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Schedule(), "Schedule()"),
        (ReadBack(), "ReadBack()"),
        (RunEffects(3), "RunEffects(count=3)"),
        (Submit(((0, 0, 5),), 2), "Submit(prompt=((0, 0, 5),), max_new=2)"),
        (
            Submit(((0, 0, 5),), 2, identity=Identity(tenant_salt="a")),
            "Submit(prompt=((0, 0, 5),), max_new=2, identity=Identity(tenant_salt='a'))",
        ),
        (
            BeginUnit((Append(1, ((7, 0, 1),)), Append(2, (), 0))),
            "BeginUnit(work=(Append(sequence=1, tokens=((7, 0, 1),)), Append(sequence=2, tokens=(), backend=0)))",
        ),
        (EndUnit(4, commit=False), "EndUnit(unit=4, commit=False)"),
        (Setting(depth=Depth.PAYLOAD, lagging=True), "Setting(depth=payload, lagging=True)"),
        (Setting(), "Setting()"),
        ("text", "'text'"),
        (None, "None"),
    ],
)
def test_only_what_is_not_the_default_is_said(value: object, words: str) -> None:
    assert in_words(value) == words


def test_remedies_are_commands_for_a_project_that_is_on_no_index() -> None:
    assert install_command() == "pip install ."
    assert "`pip install '.[engine]'`" in install_remedy("engine")
