"""How a simulated machine scatters, one number a process, for many series at once.

The log time of the process in slot s (slots are counted in the order in which processes run) is

    block + process + drift · s / slots + mode + throttle

*block* is common to both processes of a block, which is what pairing removes; *process* may be correlated from slot to
slot; *mode* is a memory layout that a process draws at its start; *throttle* comes in stretches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """Standard deviations and sizes of log time; 0.01 is 1 %.

    ``process``: between processes.  ``block``: between blocks.  ``timing``: between timings of one process.
    ``autocorrelation``: lag-1, of the process part over slots.  ``drift``: over the whole run.  ``mode_gap`` and
    ``mode_share``: how much slower the second mode is and which share of processes draws it.  ``throttle`` and
    ``throttle_share``: how much slower a throttled slot is, and the share of slots.  ``tail``: degrees of freedom of
    Student's t in place of the normal distribution, scaled to the same standard deviation; 0 for normal.
    """

    name: str
    process: float
    block: float = 0.0
    timing: float = 0.0
    autocorrelation: float = 0.0
    drift: float = 0.0
    mode_gap: float = 0.0
    mode_share: float = 0.0
    throttle: float = 0.0
    throttle_share: float = 0.0
    tail: float = 0.0


def models(paired_noise: float) -> tuple[NoiseModel, ...]:
    """Return the kinds of noise that the self-test tries.

    In each, the *process* part alone gives the log ratio of a pair a standard deviation of ``paired_noise``; what
    else a model has comes on top.
    """
    process = paired_noise / np.sqrt(2)
    block = 3 * paired_noise
    return (
        NoiseModel("normal", process, block),
        NoiseModel("heavy tails", process, block, tail=4),
        NoiseModel("correlated", process, block, autocorrelation=0.5),
        NoiseModel("drift", process, block, drift=4 * paired_noise),
        NoiseModel("bimodal", process, block, mode_gap=1.5 * paired_noise, mode_share=0.4),
        NoiseModel("throttled", process, block, throttle=2 * paired_noise, throttle_share=0.15),
    )


def process_log_times(
    model: NoiseModel, generator: np.random.Generator, head_first: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Return log times of base and head, ``[series, blocks]`` each, of code that takes the same time (log 1).

    ``head_first[series, blocks]``: which process of a block ran first.
    """
    series, blocks = head_first.shape
    slots = np.empty((series, blocks, 2))
    part = _scatter(model, generator, (series, 2 * blocks))
    if model.autocorrelation:
        rho = model.autocorrelation
        part[:, 1:] *= np.sqrt(1 - rho**2)
        part = signal.lfilter([1.0], [1.0, -rho], part, axis=1)
    slots[:] = (model.process * part).reshape(series, blocks, 2)
    if model.block:
        slots += model.block * generator.standard_normal((series, blocks, 1))
    if model.drift:
        slots += model.drift * np.linspace(0, 1, 2 * blocks).reshape(blocks, 2)
    if model.mode_share:
        slots += model.mode_gap * (generator.random(slots.shape) < model.mode_share)
    if model.throttle_share:
        slots += model.throttle * _stretches(model.throttle_share, generator, (series, 2 * blocks)).reshape(
            slots.shape
        )
    base = np.where(head_first, slots[..., 1], slots[..., 0])
    head = np.where(head_first, slots[..., 0], slots[..., 1])
    return base, head


def timings(model: NoiseModel, generator: np.random.Generator, log_times: Floats, each: int) -> Floats:
    """Return ``each`` timings (in seconds, about 1) of every process: ``[..., each]``."""
    scatter = generator.standard_normal((*log_times.shape, each))
    return np.asarray(np.exp(log_times[..., None] + model.timing * scatter))


def _scatter(model: NoiseModel, generator: np.random.Generator, shape: tuple[int, int]) -> Floats:
    if not model.tail:
        return generator.standard_normal(shape)
    return np.asarray(generator.standard_t(model.tail, shape) / np.sqrt(model.tail / (model.tail - 2)))


def _stretches(share: float, generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which slots are throttled, in stretches of about three: a machine that is hot stays hot for a while."""
    series, slots = shape
    state = generator.random(series) < share
    found = np.empty(shape, dtype=np.bool_)
    leave, enter = 1 / 3, share / (3 * (1 - share))
    for slot in range(slots):
        found[:, slot] = state
        state = np.where(state, generator.random(series) >= leave, generator.random(series) < enter)
    return found
