"""Runs the checks of the self-test: each from its own seed, so that one can be repeated alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kvcrucible.perf.selftest import gate_checks, night_checks
from kvcrucible.perf.selftest.figures import Figure
from kvcrucible.perf.selftest.names import CHECK_NAMES, require_known

Check = Callable[[np.random.Generator, float], Iterator[Figure]]

#: Checks by name, in the order in which they run.
CHECKS: dict[str, Check] = dict(
    zip(
        CHECK_NAMES,
        (
            gate_checks.coverage,
            gate_checks.processes,
            gate_checks.false_failures,
            gate_checks.power,
            gate_checks.boundary,
            night_checks.change_points,
        ),
        strict=True,
    )
)


def selftest(seed: int = 0, only: Sequence[str] = (), scale: float = 1.0) -> Iterator[Figure]:
    """Yield the figures of the checks ``only`` (all where empty), each as it is ready.

    ``scale`` multiplies the trials of each figure: less is faster and leaves bounds unresolved.  Raises
    :class:`InputError` for an unknown name or a scale outside 0.001 to 100.
    """
    require_known(seed, only, scale)
    for place, (name, check) in enumerate(CHECKS.items()):
        if not only or name in only:
            yield from check(np.random.default_rng([seed, place]), scale)
