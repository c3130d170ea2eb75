"""Noise floors: how much unchanged code differs from itself on one machine, as a certificate that expires.

A minimum effect below the floor makes a gate that fails at random, which people answer by running it again until it is
green.  So the gate refuses one.  The floor at n pairs is what n pairs can resolve, one-sided:

    floor(n) = exp(t(1 - error, n - 1) · σ⁺ / √n) - 1

σ⁺ is the upper 95 % confidence limit of the standard deviation of the log ratio of pairs of equal code (χ²), so that a
floor from few pairs is higher than one from many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import check_form, read_json, write_json
from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint
from kvcrucible.perf.statistics.metrics import Better, MetricPolicy
from kvcrucible.perf.statistics.samples import PairedSamples
from kvcrucible.perf.statistics.thresholds import MIN_PAIRS

#: Name and version of the certificate's form.
FORMAT = "kvcrucible.noise-floor/1"

#: Most bytes of a certificate that is read: a thousand times what one needs.
MAX_BYTES = 1 << 20

_REMEDY = "name a certificate that `kvcrucible perf calibrate` wrote"

#: Confidence of the upper limit of the standard deviation.
CONFIDENCE = 0.95

#: Two-sided p-value below which pairs of equal code are said to differ, so that no floor is made of them.  Small,
#: because a calibration of a hundred metrics should not stop by chance.
BIASED_P = 1e-4


@dataclass(frozen=True, slots=True)
class Noise:
    """Scatter of the log ratio of ``pairs`` pairs of equal code: its standard deviation and that one's upper limit."""

    pairs: int
    deviation: float
    deviation_upper: float

    def floor(self, pairs: int, error_rate: float) -> float:
        """Return the smallest relative change that ``pairs`` pairs resolve at one-sided ``error_rate``."""
        quantile = float(special.stdtrit(pairs - 1, 1 - error_rate))
        return float(np.expm1(quantile * self.deviation_upper / np.sqrt(pairs)))


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """A certificate: the noise of each metric on ``machine``, believed from ``created`` to ``expires`` (UTC)."""

    machine: MachineFingerprint
    created: datetime
    expires: datetime
    noise: Mapping[str, Noise]

    @property
    def origin(self) -> Origin:
        """Whether this was measured; a simulated certificate is good for simulated figures only."""
        return self.machine.origin

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form, as the schema ``noise-floor`` states it."""
        return {
            "format": FORMAT,
            "machine": self.machine.to_plain(),
            "created": self.created.isoformat(timespec="seconds"),
            "expires": self.expires.isoformat(timespec="seconds"),
            "noise": {
                metric: {
                    "pairs": noise.pairs,
                    "deviation": noise.deviation,
                    "deviation_upper": noise.deviation_upper,
                }
                for metric, noise in sorted(self.noise.items())
            },
        }

    def write(self, path: Path) -> None:
        """Write the certificate to ``path``, replacing what is there; raises :class:`InputError` where it cannot."""
        write_json(path, self.to_plain(), "name another file with --out")


def measure_noise(samples: PairedSamples, policy: MetricPolicy) -> Noise:
    """Return the noise that pairs of equal code show; nothing is changed.

    Raises :class:`InputError` for too few pairs, values that are not positive, no variation, or a difference between
    the sides that chance does not explain: then something other than noise is measured, such as who runs first.
    """
    from kvcrucible.perf.statistics.blocks import log_ratios
    from kvcrucible.perf.statistics.significance import slower_p

    base, head = np.asarray(samples.base), np.asarray(samples.head)
    if samples.pairs < MIN_PAIRS:
        raise InputError(f"{samples.metric}: {samples.pairs} pairs; a noise floor needs at least {MIN_PAIRS}")
    if samples.machine_base != samples.machine_head:
        raise InputError(f"{samples.metric}: the two sides ran on two machines")
    if not (np.isfinite(base) & np.isfinite(head) & (base > 0) & (head > 0)).all():
        raise InputError(f"{samples.metric}: every value must be positive and finite")
    differences = log_ratios(base, head, policy.better is Better.HIGHER)
    deviation = float(differences.std(ddof=1))
    if deviation <= 0:
        raise InputError(f"{samples.metric}: no variation at all; the clock is too coarse for this benchmark")
    if 2 * min(float(slower_p(differences)), float(slower_p(-differences))) < BIASED_P:
        raise InputError(
            f"{samples.metric}: equal code differs from itself by {differences.mean():+.2%}; look for what the two "
            "sides do not share (order, cache, another program) and calibrate again"
        )
    freedom = samples.pairs - 1
    upper = deviation * float(np.sqrt(freedom / special.chdtri(freedom, CONFIDENCE)))
    return Noise(samples.pairs, deviation, upper)


def certify(noise: Mapping[str, Noise], machine: MachineFingerprint, now: datetime, days: int) -> NoiseFloor:
    """Return a certificate of ``noise`` that is believed for ``days`` days from ``now`` (an aware time)."""
    created = now.astimezone(UTC).replace(microsecond=0)
    return NoiseFloor(machine, created, created + timedelta(days=days), dict(noise))


def read_noise_floor(path: Path) -> NoiseFloor:
    """Return the certificate in the file ``path``; raises :class:`InputError` where it cannot be used."""
    name = str(path)
    plain = read_json(path, MAX_BYTES, _REMEDY)
    check_form(plain, "kvcrucible.perf.statistics", "schemas/noise-floor.schema.json", name, _REMEDY)
    try:
        created, expires = (datetime.fromisoformat(plain[key]) for key in ("created", "expires"))
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    if expires <= created:
        raise InputError(f"{name}: it expires before it was created")
    noise = {metric: Noise(**entry) for metric, entry in plain["noise"].items()}
    for metric, one in noise.items():
        if one.deviation_upper < one.deviation:
            raise InputError(f"{name}: {metric}: the upper limit lies below the deviation")
    return NoiseFloor(MachineFingerprint.from_plain(plain["machine"]), created, expires, noise)
