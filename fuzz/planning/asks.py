"""Questions for ``kvcrucible plan`` and its answers, as plain data; the command is asked as a user asks it."""

from __future__ import annotations

import io
import json
import random
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import CrucibleError, ExitStatus
from kvcrucible.contract.planes import BACKENDS, MAIN, ORDERS, PlaneSpec
from kvcrucible.contract.profiles import Geometry, storage_profile

#: Bytes of one entry of a block table, an int32 (DESIGN 4.7).
_ENTRY_BYTES = 4

#: Profiles of questions, each with a head dimension that its groups divide.
_HEAD_DIMS = {"FP32": 8, "BF16": 24, "INT8-G64": 64, "NVFP4-G16": 16}


@dataclass(frozen=True, slots=True)
class Ask:
    """A demand, and either ``tokens`` (explicit) or ``free_bytes`` less ``headroom`` (automatic).

    ``backend``: the pool beside Main or None, of ``backend_layers`` layers; ``draft_tokens``: K_draft.  Both pools have
    pages of ``page_size`` tokens, ``profile``, ``heads`` and ``dim``.
    """

    max_context: int
    max_concurrency: int
    page_size: int
    profile: str
    heads: int
    dim: int
    layers: int
    backend: str | None
    backend_layers: int
    draft_tokens: int
    tokens: int | None = None
    free_bytes: int | None = None
    headroom: int = 0

    def arguments(self) -> list[str]:
        """Return the words that follow ``kvcrucible``."""
        words = ["plan", "--json", "--pools", MAIN if self.backend is None else f"{MAIN}+{self.backend}"]
        for name, value in (
            ("--max-context", self.max_context),
            ("--max-concurrency", self.max_concurrency),
            ("--page-size", self.page_size),
            ("--profile", self.profile),
            ("--heads", self.heads),
            ("--dim", self.dim),
            ("--layers", self.layers),
            ("--backend-layers", self.backend_layers),
            ("--draft-tokens", self.draft_tokens),
            ("--tokens", self.tokens),
            ("--free-bytes", self.free_bytes),
            ("--headroom", self.headroom),
        ):
            if value is not None:
                words += [name, str(value)]
        return words

    def config(self, main_pages: int, backend_pages: int | None) -> EngineConfig:
        """Return an engine's configuration with so many pages in each pool, whose planes are those asked about."""
        pools = [self._pool(MAIN, main_pages, self.layers)]
        if self.backend is not None:
            assert backend_pages is not None
            pools.append(self._pool(self.backend, backend_pages, self.backend_layers))
        return EngineConfig(tuple(pools), self.max_context, self.max_concurrency)

    def _pool(self, name: str, pages: int, layers: int) -> PoolSpec:
        geometry = Geometry(layers, self.heads, self.dim)
        planes = PlaneSpec(
            storage_profile(self.profile), geometry, self.page_size, frontier=name, order=ORDERS[name]
        )
        return PoolSpec(name, pages, self.page_size, (planes,))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command said: its numbers, or None where it refused, and then why."""

    plain: dict[str, Any] | None
    refusal: str = ""


def bytes_of(config: EngineConfig) -> int:
    """Return the bytes that an engine's pools and block tables take, from what its pools declare."""
    tables = sum(config.max_concurrency * config.blocks_per_row(pool) for pool in range(len(config.pools)))
    return sum(pool.capacity_pages * pool.page_bytes for pool in config.pools) + tables * _ENTRY_BYTES


def ask(question: Ask) -> Answer:
    """Run the command in this process; raises ``CrucibleError`` where it ends as no command should.

    By its name and not by an import: what is judged may be any planner behind that command.
    """
    said, complained = io.StringIO(), io.StringIO()
    status: Any = ExitStatus.HELD
    with (
        patch.object(sys, "argv", ["kvcrucible", *question.arguments()]),
        redirect_stdout(said),
        redirect_stderr(complained),
    ):
        try:
            runpy.run_module("kvcrucible", run_name="__main__")
        except SystemExit as end:
            status = end.code or ExitStatus.HELD
    if status == ExitStatus.USAGE:
        return Answer(None, complained.getvalue().strip())
    try:
        plain = json.loads(said.getvalue())
    except ValueError:
        plain = None
    if status != ExitStatus.HELD or not isinstance(plain, dict):
        words = complained.getvalue()[-500:]
        raise CrucibleError(f"kvcrucible {' '.join(question.arguments())} ended with {status}: {words}")
    return Answer(plain)


def drawn(seed: int) -> Ask:
    """Return a small question: sizes around page boundaries, room around what some number of pages takes."""
    draw = random.Random(seed)
    page_size = draw.choice((4, 16, 1))
    context = max(1, draw.randint(0, 5) * page_size + draw.choice((0, 1, -1, page_size // 2)))
    profile = draw.choice(list(_HEAD_DIMS))
    backend = draw.choice((None, *BACKENDS))
    question = Ask(
        context,
        draw.randint(1, 8),
        page_size,
        profile,
        draw.randint(1, 3),
        _HEAD_DIMS[profile],
        draw.randint(2, 5),
        backend,
        draw.randint(1, 2),
        draw.choice((1, 2, page_size, page_size + 1, page_size + 2, 3 * page_size)),
    )
    pages = draw.randint(1, 12) if draw.random() < 0.5 else draw.randint(1, 40)
    if draw.random() < 0.5:
        return replace(question, tokens=max(0, pages * page_size + draw.choice((0, 1, -1))))
    config = question.config(pages, None if backend is None else pages)
    free = max(0, bytes_of(config) + draw.choice((0, 0, 1, -1, 1000)))
    headroom = draw.choice((0, 1, 5_000))
    return replace(question, free_bytes=free + draw.choice((0, headroom)), headroom=headroom)
