"""What the options of ``kvcrucible fuzz`` mean: which of its modes takes which, and what their words stand for.

An option that a mode does not take is refused, never passed over: who gives one expects something of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcrucible.cli.console import stderr_line
from kvcrucible.cli.given import given_options
from kvcrucible.contract.errors import InputError

if TYPE_CHECKING:
    import typer

    from kvcrucible.fuzz.setting import Depth


@dataclass(frozen=True, slots=True)
class Mode:
    """One kind of campaign: how messages name it, and the options that it takes, by the names of their parameters."""

    name: str
    takes: frozenset[str]


def _mode(name: str, *takes: str) -> Mode:
    return Mode(name, frozenset({*takes, "seed", "out", "json_output"}))


CAMPAIGN = _mode(
    "a plain campaign",
    *("engine", "depth", "pools", "profile", "host", "device", "capacity_at"),
    *("examples", "goals", "steps", "seconds", "database"),
)
MATRIX = _mode("--matrix", "matrix", "jobs", "examples", "steps")
RAW = _mode(
    "--raw",
    *("raw", "engine", "pools", "host", "jobs", "seeds", "replay_twice", "digest", "steps", "seconds"),
)
BENCH = _mode("--raw --bench", "raw", "bench", "engine", "pools", "host", "steps")
KERNELS = _mode("--kernels", "kernels", "backend", "pairwise", "profile", "examples", "seconds")

MODES = (CAMPAIGN, MATRIX, RAW, BENCH, KERNELS)


def mode_of(*, kernels: bool, matrix: bool, raw: bool, bench: bool) -> Mode:
    """Return which mode is asked for; of several, one that does not take what asks for the others."""
    if kernels:
        return KERNELS
    if raw:
        return BENCH if bench else RAW
    return MATRIX if matrix else CAMPAIGN


def refuse_unused(context: typer.Context, mode: Mode) -> None:
    """Raise ``InputError``, which names all of them, where options were given that ``mode`` does not take."""
    unused = []
    for name, typed in given_options(context):
        if name not in mode.takes:
            takers = [one for one in MODES if name in one.takes and not (one is BENCH and name in RAW.takes)]
            # Who asked for --raw --bench has asked for --raw.
            names = [f"{one.name} alone" if mode is BENCH and one is RAW else one.name for one in takers]
            unused.append(f"{typed} (of {', '.join(names)})")
    if unused:
        them = "them" if len(unused) > 1 else "it"
        raise InputError(f"{mode.name} does not take {', '.join(unused)}; leave {them} out")


def depths_of(engine: str, depth: str, device: str) -> tuple[Depth, ...]:
    """Return the depths of a campaign; raises ``InputError`` for words that name nothing or do not go together."""
    from kvcrucible.contract.extras import install_remedy
    from kvcrucible.fuzz.adapters import external
    from kvcrucible.fuzz.campaign import default_depths
    from kvcrucible.fuzz.setting import DEVICES, Depth

    able = external.depths_of(engine)
    if device not in DEVICES:
        raise InputError(f"unknown device {device!r:.100}; use {' or '.join(DEVICES)}")
    if device != DEVICES[0] and depth == Depth.LEDGER:
        raise InputError("ledger depth has nothing on a device; use --depth payload with --device cuda")
    if depth not in (*Depth, "both"):
        raise InputError(f"unknown depth {depth!r:.100}; use ledger, payload or both")
    if depth != "both":
        return (Depth(depth),)
    if device != DEVICES[0]:
        return (Depth.PAYLOAD,)
    if able != tuple(Depth):
        return able
    depths = default_depths()
    if Depth.PAYLOAD not in depths:
        stderr_line(f"torch is not installed: ledger depth only; {install_remedy('engine')}")
    return depths


def backends_of(pools: str) -> tuple[str | None, ...]:
    """Return the pools beside Main that settings may have, None for no other; raises ``InputError``."""
    from kvcrucible.fuzz.matrix import POOLS

    if pools == "any":
        return tuple(POOLS.values())
    if pools not in POOLS:
        raise InputError(f"unknown pools {pools!r:.100}; use {', '.join(POOLS)} or any")
    return (POOLS[pools],)


def hosts_of(host: str) -> tuple[bool, ...]:
    """Return whether settings may have a Host tier; raises ``InputError``."""
    from kvcrucible.fuzz.matrix import HOSTS

    if host == "any":
        return tuple(HOSTS.values())
    if host not in HOSTS:
        raise InputError(f"unknown host {host!r:.100}; use {', '.join(HOSTS)} or any")
    return (HOSTS[host],)


def capacities_of(asked: str | None) -> tuple[int, ...]:
    """Return how many pages beyond L each named capacity is; raises ``InputError``."""
    found = []
    for name in asked.split(",") if asked is not None else ():
        match = re.fullmatch(r"L([+-][1-9][0-9]?)?", name.strip())
        if match is None:
            raise InputError(
                f"unknown capacity {name!r:.100}; use L, or L and up to 99 pages more or fewer: L-1,L,L+1"
            )
        found.append(int(match[1] or 0))
    return tuple(found)


def profiles_of(profile: str) -> tuple[str, ...]:
    """Return the storage profiles that settings may have; raises ``InputError``."""
    from kvcrucible.contract.profiles import PROFILES, storage_profile

    return tuple(PROFILES) if profile == "any" else (storage_profile(profile).name,)
