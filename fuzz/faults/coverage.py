"""Which public bugs the fault catalogue re-creates, and which of those were caught (decision 0026).

A bug is *not expressible* where its entry in ``public_bugs/`` says why.  Every other one is expressible, and counts in
the recall: *open* where no fault cites it, *expressed* where a fault does but no kept result tells what became of it,
*caught* where every fault that cites it has been run and found in every campaign, *missed* where one was not.  Those
of the missed are told apart where a campaign hung or its judge was lost, and none ended without finding it: that says
something of the judge; and where all found it, but one by luck: told by no invariant that the fault names.  A campaign
that was not run, as for want of torch, is no measurement and counts for nothing.  Nor is a kill beside which the engine
as it is did not survive the same campaign (``KeptRuns.controlled``): a bug with such kills in place of found ones is
*killed without a control*, and not measured.  A kept result counts for a fault as long as the fault's own change is
the same (``Fault.digest``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.fuzz.faults.bugs import PublicBug, public_bugs
from kvcrucible.fuzz.faults.catalogue import Fault, every_fault
from kvcrucible.fuzz.faults.results import KeptRuns, kind_of
from kvcrucible.fuzz.faults.run import FaultRun, Verdict


class Standing(StrEnum):
    """Where a public bug stands."""

    CAUGHT = "caught"
    MISSED = "missed"
    HUNG_OR_LOST = "missed: hung or lost"
    TOLD_OTHERWISE = "missed: told by another invariant"
    WITHOUT_CONTROL = "killed without a control, not measured"
    EXPRESSED = "expressed, not measured"
    OPEN = "open"
    NOT_EXPRESSIBLE = "not expressible"


#: How a bug is missed, the worst first: what several campaigns came to is the first of these that one of them came to.
ANY_MISSED = (Standing.MISSED, Standing.HUNG_OR_LOST, Standing.TOLD_OTHERWISE)


@dataclass(frozen=True, slots=True)
class Covered:
    """One public bug, the faults that cite it, and where it stands."""

    bug: PublicBug
    faults: tuple[str, ...]
    standing: Standing


def coverage(
    kept: Iterable[KeptRuns] = (),
    bugs: Iterable[PublicBug] | None = None,
    faults: Iterable[Fault] | None = None,
) -> list[Covered]:
    """Return every public bug by id with where it stands by ``kept`` results, of which a later one of the same fault
    and seed counts; a kill without a control never counts in place of another.

    ``bugs`` and ``faults``: the catalogues' own unless given.  Raises ``InputError`` for a bug that is said not to be
    expressible and is cited by a fault.
    """
    cited: dict[str, list[Fault]] = {}
    for fault in every_fault().values() if faults is None else faults:
        for bug in fault.recreates:
            cited.setdefault(bug.id, []).append(fault)
    measured: dict[str, dict[int, Standing]] = {}
    for results in kept:
        controlled = results.controlled()
        for run in results.runs:
            if run.verdict is Verdict.NOT_RUN:
                continue
            by_seed = measured.setdefault(f"{run.fault} {run.digest}", {})
            told = _standing_of(run)
            if told is Standing.CAUGHT and kind_of(run) not in controlled:
                by_seed.setdefault(run.seed, Standing.WITHOUT_CONTROL)
            else:
                by_seed[run.seed] = told
    found = []
    for bug in public_bugs().values() if bugs is None else bugs:
        by = cited.get(bug.id, [])
        if bug.not_expressible is not None and by:
            raise InputError(f"{bug.id} is said not to be expressible, and {by[0].id} re-creates it")
        seen = [measured.get(f"{fault.id} {fault.digest}", {}) for fault in by]
        found.append(Covered(bug, tuple(fault.id for fault in by), _standing(bug, seen)))
    return found


def _standing_of(run: FaultRun) -> Standing:
    """Return what one campaign says of what its fault re-creates."""
    if run.verdict in (Verdict.HUNG, Verdict.LOST):
        return Standing.HUNG_OR_LOST
    if run.told_otherwise:
        return Standing.TOLD_OTHERWISE
    return Standing.CAUGHT if run.verdict is Verdict.KILLED else Standing.MISSED


def _standing(bug: PublicBug, seen: Sequence[dict[int, Standing]]) -> Standing:
    if bug.not_expressible is not None:
        return Standing.NOT_EXPRESSIBLE
    if not seen:
        return Standing.OPEN
    by_campaign = {told for one in seen for told in one.values()}
    for worst in (*ANY_MISSED, Standing.WITHOUT_CONTROL):
        if worst in by_campaign:
            return worst
    return Standing.CAUGHT if all(seen) else Standing.EXPRESSED


def coverage_to_plain(found: Sequence[Covered], commits: Sequence[str | None] = ()) -> dict[str, Any]:
    """Return coverage as JSON-ready data; ``recall`` is caught / expressible, None where nothing was measured."""
    counts = Counter(one.standing for one in found)
    expressible = len(found) - counts[Standing.NOT_EXPRESSIBLE]
    measured = sum(counts[standing] for standing in (Standing.CAUGHT, *ANY_MISSED))
    return {
        "format": "kvcrucible.fault-coverage/1",
        "public_bugs": len(found),
        "expressible": expressible,
        "re_created": sum(bool(one.faults) for one in found),
        "caught": counts[Standing.CAUGHT],
        "recall": counts[Standing.CAUGHT] / expressible if measured and expressible else None,
        "standings": {standing.value: counts[standing] for standing in Standing},
        "measured_at": [commit for commit in commits if commit is not None],
        "bugs": [
            {
                "id": one.bug.id,
                "url": one.bug.url,
                "failure_class": one.bug.failure_class,
                "standing": one.standing.value,
                "faults": list(one.faults),
                "reason": one.bug.not_expressible,
            }
            for one in found
        ],
    }
