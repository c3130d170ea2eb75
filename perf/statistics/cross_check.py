"""Our change points beside those of ``ruptures``, whose method is another: optimal partition with a penalty.

A check, not a vote: it takes nights to be independent, so on correlated series it finds more, and what it alone finds
is no change.  What it misses of ours is worth a look.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.errors import NotRunError
from kvcrucible.contract.extras import install_remedy

#: Nights by which the two may place one change differently.
PLACE_TOLERANCE = 3


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Places (indices of nights) that both found, only we, and only ``ruptures``."""

    both: tuple[int, ...]
    only_ours: tuple[int, ...]
    only_theirs: tuple[int, ...]


def cross_check(values: NDArray[np.float64], ours: tuple[int, ...]) -> CrossCheck:
    """Compare ``ours`` with the change points that ``ruptures`` finds in ``values[night]``, positive and finite.

    Its penalty is ``3 σ² log n``, with σ from differences of neighbouring nights.  Raises :class:`NotRunError` where
    it is not installed.
    """
    try:
        import ruptures
    except ImportError:
        raise NotRunError(f"ruptures not installed; {install_remedy('perf')}") from None
    logs = np.log(values)
    if len(logs) < 4 or not np.ptp(logs):
        return CrossCheck((), ours, ())
    variance = float((np.diff(logs) ** 2).mean() / 2)
    model = ruptures.KernelCPD(kernel="linear", min_size=2).fit(logs[:, None])
    theirs = [int(at) for at in model.predict(pen=3 * float(np.log(len(logs))) * variance)[:-1]]
    near = {at: [one for one in theirs if abs(one - at) <= PLACE_TOLERANCE] for at in ours}
    matched = {one for found in near.values() for one in found}
    return CrossCheck(
        tuple(at for at in ours if near[at]),
        tuple(at for at in ours if not near[at]),
        tuple(at for at in theirs if at not in matched),
    )
