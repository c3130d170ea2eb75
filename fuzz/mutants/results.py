"""Results of mutants: kept in a file from which a run goes on, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import check_form
from kvcrucible.fuzz.keeping import read_json, write_json
from kvcrucible.fuzz.mutants.equivalent import Equivalent
from kvcrucible.fuzz.mutants.judge import Budget
from kvcrucible.fuzz.mutants.mutant import Mutant
from kvcrucible.fuzz.mutants.provenance import provenance
from kvcrucible.fuzz.mutants.run import MutantRun
from kvcrucible.fuzz.mutants.verdicts import MutantVerdict
from kvcrucible.invariants.judgements import ENGINE_FAULT

#: Name and version of the file's form; ``mutant_runs.schema.json`` is its schema.
FORMAT = "kvcrucible.mutants/2"

#: Most bytes of a file that is read: some thousand mutants, each with its lines and an error's last words.
MAX_BYTES = 32 << 20

#: Characters of a digest that are shown.
_SHOWN_DIGEST = 12

_ELSEWHERE = "name another file with --out, or remove it"


class ResultsFile:
    """What became of mutants of one engine before one judge under one budget, written anew after each.

    ``runs`` holds them by the mutant's id.  Raises ``InputError`` where there is a file of something else, to which
    nothing can be added: of another engine's or judge's source (:mod:`kvcrucible.fuzz.mutants.provenance`) or budget,
    or one that does not keep its form.
    """

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path = path
        self._head = {"format": FORMAT, **provenance(budget)}
        self.runs: dict[str, MutantRun] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read()

    def add(self, mutant: Mutant, run: MutantRun) -> None:
        """Keep what became of a mutant; the file is whole at any moment."""
        self.runs[mutant.id] = run
        self._entries[mutant.id] = to_plain(mutant, run)
        write_json(self.path, {**self._head, "results": list(self._entries.values())})

    def _read(self) -> None:
        plain = read_json(self.path, MAX_BYTES)
        told = plain.get("format", FORMAT) if isinstance(plain, dict) else FORMAT
        if told != FORMAT:
            raise InputError(
                f"{self.path} is of format {told!r:.60}, this version's is {FORMAT!r}; {_ELSEWHERE}"
            )
        name = f"{self.path} is no file of results"
        check_form(plain, "kvcrucible.fuzz.mutants", "mutant_runs.schema.json", name, _ELSEWHERE)
        self._require_same(plain)
        for entry in plain["results"]:
            self._take(entry)

    def _require_same(self, plain: dict[str, Any]) -> None:
        """Raise ``InputError``, which names both, where the file is not of this run's engine, judge and budget."""
        for key in ("engine", "judge"):
            theirs, ours = (f"{head[key][:_SHOWN_DIGEST]} ({head['commit']})" for head in (plain, self._head))
            if plain[key] != self._head[key]:
                raise InputError(
                    f"{self.path} is of another {key}: source digest and commit are {theirs} there and {ours} here; "
                    f"{_ELSEWHERE}"
                )
        there, here = plain["budget"], self._head["budget"]
        if there != here:
            others = [
                f"{name} {there[name]} there and {here[name]} here"
                for name in here
                if there[name] != here[name]
            ]
            raise InputError(f"{self.path} is of another budget: {', '.join(others)}; {_ELSEWHERE}")

    def _take(self, entry: dict[str, Any]) -> None:
        name = entry["mutant"]
        known = ("module", "function", "operator", "line", "before", "after", "nth")
        # Its id is a digest of the rest: an entry that was edited is told by it.
        if Mutant(**{key: entry[key] for key in known}, start=0, stop=0, text="").id != name:
            raise InputError(
                f"{self.path} is no file of results: {name!r:.120} is not the id of what it says"
            )
        if name in self.runs:
            raise InputError(f"{self.path} is no file of results: it has {name!r:.120} twice")
        self._entries[name] = entry
        self.runs[name] = MutantRun(
            name,
            MutantVerdict(entry["verdict"]),
            tuple(entry["invariants"]),
            entry["seeds"],
            entry["steps"],
            entry["note"],
        )


def to_plain(mutant: Mutant, run: MutantRun) -> dict[str, Any]:
    """Return a mutant and what became of it as JSON-ready data."""
    return {
        **asdict(run),
        "verdict": run.verdict.value,
        "module": mutant.module,
        "function": mutant.function,
        "operator": mutant.operator,
        "line": mutant.line,
        "before": mutant.before,
        "after": mutant.after,
        "nth": mutant.nth,
    }


def totals(runs: Iterable[MutantRun], listed: Mapping[str, Equivalent]) -> dict[str, Any]:
    """Return what runs add up to; ``listed``: the judged survivors, by id.

    ``counted`` are those that are neither equivalent nor stillborn, ``killed`` of them the killed; ``rate`` is their
    quotient.  ``told_by_tests`` are the survivors that a test tells and no seed does: counted, and not killed.  A
    listed one that was killed all the same is counted, and named in ``wrongly_listed``.  ``by_crash_alone``: kills in
    which the engine fell over and no invariant spoke.  Percentiles are of the seeds until a kill.
    """
    runs = list(runs)
    survivors = [run for run in runs if run.verdict is MutantVerdict.SURVIVED]
    known = [listed[run.mutant] for run in survivors if run.mutant is not None and run.mutant in listed]
    equivalent = [entry for entry in known if entry.told_by is None]
    killed = [run for run in runs if run.verdict is MutantVerdict.KILLED]
    by_verdict = Counter(run.verdict for run in runs)
    counted = len(runs) - len(equivalent) - by_verdict[MutantVerdict.STILLBORN]
    seeds = sorted(run.seeds or 0 for run in killed)
    return {
        "mutants": len(runs),
        "counted": counted,
        **{verdict.value: by_verdict[verdict] for verdict in MutantVerdict},
        "equivalent": len(equivalent),
        "told_by_tests": len(known) - len(equivalent),
        "rate": len(killed) / counted if counted else None,
        "by_crash_alone": sum(run.invariants == (ENGINE_FAULT,) for run in killed),
        "unlisted_survivors": [run.mutant for run in survivors if run.mutant not in listed],
        "wrongly_listed": [run.mutant for run in killed if run.mutant in listed],
        "median_seeds": median(seeds) if seeds else None,
        "p95_seeds": seeds[ceil(0.95 * len(seeds)) - 1] if seeds else None,
        "most_seeds": seeds[-1] if seeds else None,
    }


def to_do(
    mutants: Iterable[Mutant], there: Mapping[str, MutantRun], again: Collection[MutantVerdict]
) -> list[Mutant]:
    """Return the mutants that were not judged yet, or came to one of the verdicts to be looked at again."""
    return [one for one in mutants if one.id not in there or there[one.id].verdict in again]
