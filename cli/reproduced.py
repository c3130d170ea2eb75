"""Writing a failing example for the commands that find one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import InputError

if TYPE_CHECKING:
    from kvcrucible.fuzz.campaign import Failure


def write_reproduction(failure: Failure | None, out: Path) -> tuple[Path | None, str | None]:
    """Write a failing example; a folder that cannot be written costs the file, never the report.

    Returns where it was written, and why it was not; neither where there is no failure.
    """
    if failure is None:
        return None, None
    from kvcrucible.fuzz.reproduction import write

    try:
        return write(out, failure.setting, failure.steps, failure.violations), None
    except (OSError, InputError) as error:
        return None, f"no reproduction was written to {out}: {error}; name another folder with --out"
