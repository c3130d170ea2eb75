"""Remakes the launch table by time, on the device that is there; only CUDA can say what is fast.

For each key every candidate runs on the same permuted pages, in turn and several times; the least time wins, and a tie
within the noise goes to what the table says now, so that a rerun does not shuffle it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import torch

from kvcrucible.contract.errors import NotRunError
from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder
from kvcrucible.engine.kernels.triton import backend, launch
from kvcrucible.engine.kernels.triton.launch import Config, Key

#: Share by which a candidate must be faster than the present choice to replace it.
LEAST_GAIN = 0.03

#: Rows, KV heads, queries and context of the batch that each length class is timed on.
BATCHES = {
    "decode-short": (32, 8, 1, 1024),
    "decode-long": (8, 8, 1, 32_768),
    "prefill": (1, 8, 2048, 8192),
}

#: Rounds of every candidate; the least time of a candidate counts.
ROUNDS = 7


def candidates(present: Config) -> Iterator[Config]:
    """Yield the configurations to be tried for one key, the present one first."""
    yield present
    lines = (present.lines,) if present.most_splits > 1 else (32, 64, 128)
    for line_count, tile, warps, stages in product(lines, (32, 64), (4, 8), (2, 3)):
        found = replace(present, lines=line_count, tile=tile, num_warps=warps, num_stages=stages)
        if found != present:
            yield found


def choose(present: Config, seconds: dict[Config, float]) -> Config:
    """Return the fastest configuration, the present one unless another gains ``LEAST_GAIN``; failures are absent."""
    if not seconds:
        return present
    best = min(seconds, key=lambda one: seconds[one])
    if present in seconds and seconds[best] > seconds[present] * (1 - LEAST_GAIN):
        return present
    return best


def tune(
    keys: Iterable[Key],
    time_of: Callable[[Key, Config], float | None],
    on_key: Callable[[Key], None] | None = None,
) -> dict[str, Any]:
    """Return a new table: one rule for each key that a time was had for, then the rules that there were.

    ``time_of`` returns seconds, None where the configuration does not run.
    """
    rules = []
    for key in keys:
        present = launch.config(key)
        timed = {one: time_of(key, one) for one in candidates(present)}
        chosen = choose(present, {one: seconds for one, seconds in timed.items() if seconds is not None})
        rules.append(
            {"match": {name: [value] for name, value in asdict(key).items()}, "config": asdict(chosen)}
        )
        if on_key is not None:
            on_key(key)
    kept = [
        {"match": {k: list(v) for k, v in match.items()}, "config": asdict(c)} for match, c in launch.table()
    ]
    table = {
        "format": launch.FORMAT,
        "rules": rules + [rule for rule in kept if rule["match"] not in _matches(rules)],
    }
    launch.parse(table)
    return table


def device_keys(profiles: Iterable[str], head_dims: Iterable[int], groups: Iterable[int]) -> list[Key]:
    """Return the keys of the device that is there; raises ``NotRunError`` where there is none."""
    if not torch.cuda.is_available():
        raise NotRunError("no device: a launch table is timed on the GPU that it is for")
    return keys_of(
        backend.target(torch.device("cuda", torch.cuda.current_device())), profiles, head_dims, groups
    )


def keys_of(
    target: str, profiles: Iterable[str], head_dims: Iterable[int], groups: Iterable[int]
) -> list[Key]:
    """Return the keys of ``target`` for profiles, head dimensions and groups, of those that go together."""
    return [
        Key(
            target,
            backend.profile_name(_storage(profile, dim, 1, 1, 1, "cpu").layer_view(0)),
            dim,
            group,
            length,
        )
        for profile, dim, group, length in product(profiles, head_dims, groups, launch.LENGTH_CLASSES)
        if all(plane.divides(dim) for plane in PROFILES[profile].planes)
    ]


def time_on_device(profile: str) -> Callable[[Key, Config], float | None]:
    """Return a timer for keys of ``profile`` on the present device: least seconds of one call over several rounds."""

    def time_of(key: Key, chosen: Config) -> float | None:
        rows, heads, queries, context = BATCHES[key.length]
        blocks = -(-context // 64)
        storage = _storage(profile, key.head_dim, heads, rows, blocks, "cuda")
        ids = torch.randperm(rows * blocks, generator=torch.Generator().manual_seed(0)).tolist()
        for row in range(rows):
            storage.write_table(row, 0, ids[row * blocks : (row + 1) * blocks])
        shape = (rows * queries, heads * key.group, key.head_dim)
        q = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        lists = list(range(rows)), [queries] * rows, [context] * rows
        try:
            return min(_seconds(q, storage.layer_view(0), lists, chosen) for _ in range(ROUNDS))
        except Exception:
            # Triton says in many ways that a device cannot hold a configuration; it is then no candidate.
            return None

    return time_of


def _seconds(
    q: torch.Tensor, view: Any, lists: tuple[list[int], list[int], list[int]], chosen: Config
) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    backend.paged_attention(q, view, *lists, 0.1, True, chosen)
    start.record()
    backend.paged_attention(q, view, *lists, 0.1, True, chosen)
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def _storage(profile: str, dim: int, heads: int, rows: int, blocks: int, device: str) -> Any:
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    return TorchStorage(
        PROFILES[profile],
        Geometry(1, heads, dim),
        rows * blocks,
        64,
        rows,
        blocks,
        device,
        order=PlaneOrder.PAGE_MAJOR,
    )


def _matches(rules: list[dict[str, Any]]) -> list[Any]:
    return [rule["match"] for rule in rules]


def to_text(table: dict[str, Any]) -> str:
    """Return a table as the file holds it: one rule in two lines."""
    rules = ",\n".join(
        f'    {{\n      "match": {json.dumps(rule["match"])},\n      "config": {json.dumps(rule["config"])}\n    }}'
        for rule in table["rules"]
    )
    return f'{{\n  "format": {json.dumps(table["format"])},\n  "rules": [\n{rules}\n  ]\n}}\n'
