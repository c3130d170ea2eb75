"""Runs the checks of the self-test: each from its own seed, so that one can be repeated alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.selftest import gate_checks, night_checks
from kvcrucible.perf.selftest.figures import Figure

Check = Callable[[np.random.Generator, float], Iterator[Figure]]

#: Checks by name, in the order in which they run.
CHECKS: dict[str, Check] = {
    "coverage": gate_checks.coverage,
    "processes": gate_checks.processes,
    "false-failures": gate_checks.false_failures,
    "power": gate_checks.power,
    "boundary": gate_checks.boundary,
    "change-points": night_checks.change_points,
}


def selftest(seed: int = 0, only: Sequence[str] = (), scale: float = 1.0) -> Iterator[Figure]:
    """Yield the figures of the checks ``only`` (all where empty), each as it is ready.

    ``scale`` multiplies the trials of each figure: less is faster and leaves bounds unresolved.  Raises
    :class:`InputError` for an unknown name or a scale outside 0.001 to 100.
    """
    if unknown := sorted(set(only) - CHECKS.keys()):
        raise InputError(f"check {', '.join(unknown)}: use {', '.join(CHECKS)}")
    if not 0.001 <= scale <= 100:
        raise InputError(f"scale {scale}: use 0.001 to 100")
    if seed < 0:
        raise InputError(f"seed {seed}: use 0 or more")
    for place, (name, check) in enumerate(CHECKS.items()):
        if not only or name in only:
            yield from check(np.random.default_rng([seed, place]), scale)
