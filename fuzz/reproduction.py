"""Failing examples as standalone tests: written once, run without any database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from pprint import pformat
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.fuzz.adapters.external import is_external
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step, step_to_plain, steps_from_plain
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: Longest part of a message that goes into a file; a message may quote whole token lists.
MAX_MESSAGE_CHARACTERS = 600

#: How many files of one name are tried before writing gives up; more means that nobody looks at them.
MAX_FILES_OF_ONE_NAME = 1000

_TEMPLATE = '''"""A sequence of operations that broke an invariant; found by a fuzz campaign of KV Crucible.

It fails while the engine is broken and passes once it is mended.  Run it with ``python -m pytest`` and this file's
name.
"""

{imports}from kvcrucible.fuzz.reproduction import run_case

# {comment}

{use}SETTING = {setting}

STEPS = {steps}


def test_{name}() -> None:
    run_case(SETTING, STEPS)
'''


def run_case(setting: dict[str, Any], steps: Sequence[Any]) -> None:
    """Run steps given as plain data in lock step with the reference, then end everything.

    Raises ``InvariantViolated`` at the first difference and ``InputError`` for data that is no example.
    """
    example = LockStep(Setting.from_plain(setting))
    for step in steps_from_plain(steps):
        example.step(step)
    example.close()


def violations_of(setting: Setting, steps: Sequence[Step]) -> tuple[Violation, ...]:
    """Run an example and return what it violates; empty where it holds."""
    try:
        run_case(setting.to_plain(), [step_to_plain(step) for step in steps])
    except InvariantViolated as found:
        return found.violations
    return ()


def render(setting: Setting, steps: Sequence[Step], violations: Sequence[Violation]) -> tuple[str, str]:
    """Return a name for the example and the text of its test; every argument is the ``repr`` of plain values."""
    plain_setting, plain_steps = setting.to_plain(), [step_to_plain(step) for step in steps]
    digest = sha256(repr((plain_setting, plain_steps)).encode()).hexdigest()[:8]
    invariant = violations[0].invariant if violations else "unknown"
    name = f"{re.sub(r'[^a-z0-9]+', '_', invariant.lower()).strip('_')}_{digest}"
    message = violations[0].message if violations else ""
    # ``ascii`` keeps quotes, line ends and control characters of foreign text inside one comment line.
    comment = ascii(f"{invariant}: {message}"[:MAX_MESSAGE_CHARACTERS])
    outside = is_external(setting.engine)
    text = _TEMPLATE.format(
        imports="from kvcrucible.fuzz.adapters.external import use_engine\n" if outside else "",
        use=f"use_engine({setting.engine!r})\n\n" if outside else "",
        comment=comment,
        setting=pformat(plain_setting, sort_dicts=False, width=100),
        steps=pformat(plain_steps, sort_dicts=False, width=100),
        name=name,
    )
    return name, text


def write(folder: Path, setting: Setting, steps: Sequence[Step], violations: Sequence[Violation]) -> Path:
    """Write the example as ``test_NAME.py`` into ``folder`` and return its path; an existing file is never
    overwritten.
    """
    name, text = render(setting, steps, violations)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, MAX_FILES_OF_ONE_NAME + 1):
        path = folder / (f"test_{name}.py" if number == 1 else f"test_{name}_{number}.py")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise InputError(f"{folder} holds {MAX_FILES_OF_ONE_NAME} files test_{name}*.py already; move them away")
