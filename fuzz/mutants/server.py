"""A fork server: reads one mutant a line, judges each in a child of its own, and writes one verdict a line.

``python -m kvcrucible.fuzz.mutants.server``.

Lines are JSON.  In: ``{"module", "source", "budget"}``.  Out: ``{"verdict", "invariants", "seeds", "steps",
"note"}``.  Children write theirs to a pipe; what they print goes nowhere.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any, TextIO

from kvcrucible.fuzz.faults.overlay import plant
from kvcrucible.fuzz.forking import preload
from kvcrucible.fuzz.mutants.judge import Budget, judge
from kvcrucible.fuzz.mutants.verdicts import OUT_OF_MEMORY, MutantVerdict

#: Address space of a child: a mutant that collects for ever ends here, and not the machine.
CHILD_BYTES = 2 << 30

#: How many times as long by the clock a child may be at one seed, since one that sleeps takes no processor time.
CLOCK_FACTOR = 10

#: What a child writes before its report, each time that it begins a seed.
_ALIVE = b"."

#: Characters of an error that are kept.
_LAST_WORDS = 2_000


@dataclass(frozen=True, slots=True)
class PlantedSource:
    """A whole module's source to be imported in place of its own."""

    id: str
    module: str
    source: str

    def apply_to(self, source: str) -> str:
        """Return the planted source."""
        return self.source


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer every request, one after another, until there are no more."""
    preload()
    for line in requests:
        request = json.loads(line)
        answers.write(json.dumps(answer(request)) + "\n")
        answers.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Judge one mutant in a child."""
    budget = Budget(**request["budget"])
    server = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _be_the_child(request, budget, writing, server)
    os.close(writing)
    try:
        report = _hear(reading, budget.seed_seconds * CLOCK_FACTOR)
    finally:
        os.close(reading)
    if report is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    hung = report is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)
    if hung:
        return _plain(MutantVerdict.HUNG, f"a seed took more than {budget.seed_seconds:g} s")
    try:
        told: dict[str, Any] = json.loads(report or b"")
    except ValueError:
        return _plain(MutantVerdict.LOST, f"the child ended with wait status {status} and no report")
    return told


def _hear(reading: int, patience: float) -> bytes | None:
    """Return what a child reports, None where it has been silent for so many seconds."""
    heard = b""
    while True:
        ready, _, _ = select.select([reading], [], [], patience)
        if not ready:
            return None
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return heard.lstrip(_ALIVE)
        heard += chunk


def _be_the_child(request: dict[str, Any], budget: Budget, writing: int, server: int) -> None:
    """Plant, judge, report and end the process; it ends too where the process ``server`` is gone."""
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, CHILD_BYTES))
        os.environ["KVCRUCIBLE_KERNELS"] = "torch"

        def alive() -> None:
            # By default the signal ends the process wherever it is, within one call of C too.
            signal.setitimer(signal.ITIMER_PROF, budget.seed_seconds)
            if os.getppid() != server:
                os._exit(1)
            os.write(writing, _ALIVE)

        os.write(writing, json.dumps(_judged(request, budget, alive)).encode())
        status = 0
    finally:
        os._exit(status)


def _judged(request: dict[str, Any], budget: Budget, alive: Any) -> dict[str, Any]:
    try:
        if request["source"] is not None:
            plant(PlantedSource("mutant", request["module"], request["source"]))
        alive()
        import kvcrucible.fuzz.adapters.registry  # noqa: F401
    except Exception:
        return _plain(MutantVerdict.STILLBORN, traceback.format_exc()[-_LAST_WORDS:])
    try:
        found = judge(budget, alive)
    except MemoryError:
        return _plain(MutantVerdict.HUNG, OUT_OF_MEMORY)
    except Exception:
        return _plain(MutantVerdict.LOST, traceback.format_exc()[-_LAST_WORDS:])
    verdict = MutantVerdict.KILLED if found.invariants else MutantVerdict.SURVIVED
    if "MemoryError" in found.note:
        verdict = MutantVerdict.HUNG
    return {
        "verdict": verdict.value,
        "invariants": list(found.invariants),
        "seeds": found.seeds,
        "steps": found.steps,
        "note": found.note[:_LAST_WORDS],
    }


def _plain(verdict: MutantVerdict, note: str) -> dict[str, Any]:
    return {"verdict": verdict.value, "invariants": [], "seeds": None, "steps": None, "note": note}


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
