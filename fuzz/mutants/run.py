"""Runs mutants through fork servers, one server a job, and says what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kvcrucible.fuzz.faults.catalogue import source_of
from kvcrucible.fuzz.forking import ForkServer, share_out
from kvcrucible.fuzz.mutants.judge import Budget
from kvcrucible.fuzz.mutants.mutant import Mutant
from kvcrucible.fuzz.mutants.verdicts import MutantVerdict

#: What a server runs.
SERVER = "kvcrucible.fuzz.mutants.server"

#: Servers that run at a time unless told otherwise.
DEFAULT_JOBS = 2


@dataclass(frozen=True, slots=True)
class MutantRun:
    """What became of one mutant; ``mutant`` is its id, None for the engine as it is.

    ``invariants``: what the first failing step broke.  ``seeds``, ``steps``: what had been tried by then, or at all.
    """

    mutant: str | None
    verdict: MutantVerdict
    invariants: tuple[str, ...] = ()
    seeds: int | None = None
    steps: int | None = None
    note: str = ""


def judge_mutant(server: ForkServer, mutant: Mutant | None, budget: Budget) -> MutantRun:
    """Judge one mutant, or with None the engine as it is; raises ``CrucibleError`` where the server is gone."""
    request = {
        "module": None if mutant is None else mutant.module,
        "source": None if mutant is None else mutant.apply_to(source_of(mutant.module)),
        "budget": asdict(budget),
    }
    return _run(None if mutant is None else mutant.id, server.ask(request))


def run_mutants(
    mutants: Iterable[Mutant | None],
    budget: Budget,
    jobs: int = DEFAULT_JOBS,
    on_done: Callable[[MutantRun], None] | None = None,
) -> list[MutantRun]:
    """Judge mutants, at most ``jobs`` and no more than this process has cores at a time; runs in the given order.

    ``on_done`` is called after each, as they end, by the caller's own thread.
    """
    return share_out(
        SERVER,
        list(mutants),
        lambda server, mutant: judge_mutant(server, mutant, budget),
        jobs,
        None if on_done is None else lambda _, run: on_done(run),
    )


def _run(mutant: str | None, told: dict[str, Any]) -> MutantRun:
    return MutantRun(
        mutant,
        MutantVerdict(told["verdict"]),
        tuple(told["invariants"]),
        told["seeds"],
        told["steps"],
        told["note"],
    )
