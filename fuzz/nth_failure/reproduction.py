"""A failing cell as a standalone test."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from pprint import pformat

from kvcrucible.contract.errors import InputError
from kvcrucible.fuzz.nth_failure.campaign import failure_to_plain
from kvcrucible.fuzz.nth_failure.cells import Tried
from kvcrucible.fuzz.reproduction import MAX_FILES_OF_ONE_NAME, MAX_MESSAGE_CHARACTERS

_TEMPLATE = '''"""A failure of one grant, copy or publication that an engine did not take back; found by KV Crucible.

It fails while the engine is broken and passes once it is mended.  Run it with ``python -m pytest`` and this file's
name.
"""

from kvcrucible.fuzz.nth_failure.campaign import run_cell

# {comment}

SETTING = {setting}

STEPS = {steps}

FAILURE = {failure}


def test_nth_failure_{name}() -> None:
    run_cell(SETTING, STEPS, FAILURE)
'''


def render(failed: Tried) -> tuple[str, str]:
    """Return a name for the cell and the text of its test; every argument is the ``repr`` of plain values."""
    plain = failure_to_plain(failed)
    name = sha256(repr(plain).encode()).hexdigest()[:8]
    first = failed.violations[0]
    text = _TEMPLATE.format(
        comment=ascii(f"{failed.cell}: {first.invariant}: {first.message}"[:MAX_MESSAGE_CHARACTERS]),
        setting=pformat(plain["setting"], sort_dicts=False, width=100),
        steps=pformat(plain["steps"], sort_dicts=False, width=100),
        failure=repr(plain["failure"]),
        name=name,
    )
    return name, text


def write(folder: Path, failed: Tried) -> Path:
    """Write the cell as ``test_nth_failure_NAME.py`` into ``folder``; an existing file is never overwritten."""
    name, text = render(failed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, MAX_FILES_OF_ONE_NAME + 1):
        path = folder / f"test_nth_failure_{name}{'' if number == 1 else f'_{number}'}.py"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise InputError(f"{folder} holds {MAX_FILES_OF_ONE_NAME} files of this name already; move them away")
