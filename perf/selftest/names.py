"""What the self-test can be asked for: known without numpy, so that a wrong name is told before a library is missed."""

from __future__ import annotations

from collections.abc import Sequence

from kvcrucible.contract.errors import InputError

#: Names of the checks, in the order in which they run.
CHECK_NAMES = ("coverage", "processes", "false-failures", "power", "boundary", "change-points")


def require_known(seed: int, only: Sequence[str], scale: float) -> None:
    """Raise ``InputError`` for a check that is none, a scale that is not in 0.001 to 100, or a seed below 0."""
    if unknown := sorted(set(only) - set(CHECK_NAMES)):
        raise InputError(f"check {', '.join(unknown)}: use {', '.join(CHECK_NAMES)}")
    if not 0.001 <= scale <= 100:
        raise InputError(f"scale {scale}: use 0.001 to 100")
    if seed < 0:
        raise InputError(f"seed {seed}: use 0 or more")
