"""Runs campaigns against planted faults, each in a child process, and says which were killed.

Against a fault of ledger depth that is a block of seeds of the raw loop, which finds and shrinks several times as fast
as a campaign of Hypothesis; against one of payload depth, and everywhere on demand, it is such a campaign.

Killed means that the campaign reported a violation.  A child that crashes, hangs or loses its anchor is none of the
verdicts that count as killed: a judge that falls over proves nothing.
"""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from kvcrucible.contract.errors import CrucibleError, ExitStatus
from kvcrucible.contract.extras import install_remedy
from kvcrucible.fuzz.faults.catalogue import NO_FAULT, Fault
from kvcrucible.fuzz.faults.planner_child import QUESTIONS
from kvcrucible.fuzz.forking import ForkServer, share_out
from kvcrucible.fuzz.kernels.backends import TARGETS
from kvcrucible.fuzz.kernels.run import KernelPlan, run_target, target_of
from kvcrucible.fuzz.setting import Depth
from kvcrucible.invariants.judgements import ENGINE_FAULT

#: Seconds of processor time after which a child counts as hung, however busy the machine is; a campaign of the default
#: size takes a tenth of it.
CHILD_SECONDS = 300

#: How many times as long by the clock: a child that sleeps takes no processor time.
CLOCK_FACTOR = 10

#: Seeds of the raw loop that one campaign runs against a fault of ledger depth: half a minute on an engine that holds.
RAW_SEEDS = 1_500

#: What forks the children of ledger depth.
SERVER = "kvcrucible.fuzz.faults.server"

#: What drives the engine.
RAW, HYPOTHESIS = "raw", "hypothesis"

#: Children that run at a time unless told otherwise: each holds a core and, at payload depth, torch.
DEFAULT_JOBS = 2

#: Examples of each cell of a kernel campaign, over all cells and where the catalogue says that a fault shows.
KERNEL_EXAMPLES, SOUGHT_EXAMPLES = 2, 4

#: What is tried against faults of the capacity planner, which drive neither an engine nor a back-end.
PLANNER = "planner"

#: What an engine raises that was changed by a fault which is itself written wrongly: such a kill shows nothing.  A
#: missing object is another matter, since not to have made one may well be the fault.
_WRITTEN_WRONGLY = re.compile(
    r"raised (?:NameError|UnboundLocalError|ImportError|SyntaxError|"
    r"AttributeError: (?:module |type object |'[A-Z](?!oneType')\w*' object))"
)

#: Note of a campaign that somebody ended before it was through.
INTERRUPTED = "interrupted"

#: Characters of a lost child's last words that are kept.
_LAST_WORDS = 2_000


class Verdict(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    HUNG = "hung"
    LOST = "lost"
    NOT_RUN = "not run"


#: What several campaigns against one fault came to is the first of these that one of them came to.
WORST_FIRST = (Verdict.SURVIVED, Verdict.LOST, Verdict.HUNG, Verdict.NOT_RUN, Verdict.KILLED)


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One fault under one campaign; ``NO_FAULT`` names the engine as it is.

    ``seen``: what the first failing example violated, in the order of the report: one step may break several.
    ``invariants``: what the minimal example violates, the same without shrinking; ``expected``: whether the catalogue
    names one of either.  ``examples``, ``steps``: what was tried until a failure was first seen; ``length``: steps of
    the minimal example, None where nothing was shrunk.  ``depth`` is ``kernels`` or ``planner`` for a fault of that
    part, whose tries are cases of one kernel call, or questions, and have no steps.  ``digest`` is the fault's own.
    ``driver``: ``RAW``, whose tries are seeds, or ``HYPOTHESIS``, whose tries are examples; None where no engine is
    driven.
    """

    fault: str
    depth: str
    seed: int
    verdict: Verdict
    digest: str = ""
    seen: tuple[str, ...] = ()
    invariants: tuple[str, ...] = ()
    expected: bool = False
    examples: int | None = None
    steps: int | None = None
    length: int | None = None
    reproduction: str | None = None
    note: str = ""
    driver: str | None = None

    @property
    def fired(self) -> tuple[str, ...]:
        """Every invariant that was reported, the first one first."""
        return tuple(dict.fromkeys((*self.seen, *self.invariants)))

    @property
    def told_otherwise(self) -> bool:
        """Whether it was killed by none of the invariants that its fault names: found by luck, which is not caught."""
        return self.verdict is Verdict.KILLED and not self.expected

    @property
    def by_crash_alone(self) -> bool:
        """Whether it was killed and nothing told it but that the engine raised: no invariant named it."""
        return self.verdict is Verdict.KILLED and self.fired == (ENGINE_FAULT,)


@dataclass(frozen=True, slots=True)
class CampaignOptions:
    """How each child's campaign runs; ``seconds`` of processor time: after which it counts as hung.

    ``shrink``: whether what fails is made minimal, which takes most of the time of a campaign that finds a fault.
    ``raw_seeds``: how many seeds of the raw loop stand for a campaign at ledger depth, from ``seed`` times as many on;
    0 for a campaign of Hypothesis.
    """

    examples: int = 300
    steps: int = 60
    seed: int = 0
    out: Path | None = None
    seconds: float = CHILD_SECONDS
    shrink: bool = True
    raw_seeds: int = RAW_SEEDS


@dataclass(frozen=True, slots=True)
class Trial:
    """One campaign to run: against ``fault``, or against the engine as it is where that is None.

    ``target``: the back-end whose kernels are tried by themselves, or ``PLANNER``; None for a campaign that drives an
    engine.
    """

    fault: Fault | None
    depth: Depth
    options: CampaignOptions
    target: str | None = None


def trials_of(faults: Sequence[Fault], options: CampaignOptions, seeds: int = 1) -> list[Trial]:
    """Return a trial for each fault, at the depth that the catalogue names, under each of ``seeds`` seeds in turn.

    Only the first of them shrinks what it finds and writes it down: the others say what fires, and how soon.
    """
    found = []
    for fault in faults:
        target = target_of(fault).name if fault.part == "kernels" else None
        target = PLANNER if fault.part == "planner" else target
        found.append(Trial(fault, fault.depth, options, target))
        for index in range(1, seeds):
            quick = replace(options, seed=options.seed + index, shrink=False, out=None)
            found.append(Trial(fault, fault.depth, quick, target))
    return found


def unchanged_trials(faults: Sequence[Fault], options: CampaignOptions) -> list[Trial]:
    """Return the same campaigns, once for each depth and kernel back-end, on the engine as it is, where they must find
    nothing: a judge that condemns everybody would find every fault.
    """
    kinds = dict.fromkeys((trial.depth, trial.target) for trial in trials_of(faults, options))
    return [Trial(None, depth, options, target) for depth, target in kinds]


def run_trials(
    trials: Sequence[Trial], jobs: int = DEFAULT_JOBS, on_done: Callable[[FaultRun], None] | None = None
) -> list[FaultRun]:
    """Run campaigns, at most ``jobs`` and no more than this process has cores at a time; results in the given order.

    Interruption ends the children and returns what was found until then; the rest is ``NOT_RUN``, with the note
    ``INTERRUPTED``.
    """
    runs = [replace(_blank(trial), note=INTERRUPTED) for trial in trials]
    children: set[subprocess.Popen[str]] = set()

    def keep(at: int, run: FaultRun) -> None:
        runs[at] = run
        if on_done is not None:
            on_done(run)

    def end() -> None:
        for child in list(children):
            child.kill()

    with suppress(KeyboardInterrupt):
        share_out(SERVER, trials, lambda server, one: run_trial(one, server, children), jobs, keep, end)
    return runs


def run_trial(
    trial: Trial, server: ForkServer | None = None, children: set[subprocess.Popen[str]] | None = None
) -> FaultRun:
    """Run one campaign in a child process and judge how the child ended.

    At ledger depth ``server`` forks the child; elsewhere, and without a server, it is a fresh interpreter, which is
    among ``children`` as long as it runs.
    """
    blank, expects = _blank(trial), () if trial.fault is None else trial.fault.expects
    children = set() if children is None else children
    if trial.depth is Depth.PAYLOAD and find_spec("torch") is None:
        return replace(blank, note=f"payload depth needs torch: {install_remedy('engine')}")
    if trial.target == PLANNER:
        return _planner_run(blank, expects, trial.options, children)
    if trial.target is not None:
        return _kernel_run(blank, trial, trial.target)
    return _judge(blank, expects, _start(blank.fault, trial, server, children), trial.options.shrink)


def _blank(trial: Trial) -> FaultRun:
    """Return what is known of a campaign before it runs."""
    name, digest = (NO_FAULT, "") if trial.fault is None else (trial.fault.id, trial.fault.digest)
    depth = trial.depth.value if trial.target is None else PLANNER if trial.target == PLANNER else "kernels"
    driver = None if trial.target is not None else RAW if _is_raw(trial) else HYPOTHESIS
    return FaultRun(name, depth, trial.options.seed, Verdict.NOT_RUN, digest, driver=driver)


def _is_raw(trial: Trial) -> bool:
    return trial.depth is Depth.LEDGER and trial.options.raw_seeds > 0


def _planner_run(
    blank: FaultRun, expects: Sequence[str], options: CampaignOptions, children: set[subprocess.Popen[str]]
) -> FaultRun:
    """Ask the capacity planner in a child of its own, and judge how it ended.

    ``examples`` of the result are the questions before the first wrong answer, ``reproduction`` is the command that was
    answered wrongly.
    """
    command = [blank.fault, "--seed", str(options.seed), "--questions", str(QUESTIONS)]
    try:
        done = _interpreter(
            "kvcrucible.fuzz.faults.planner_child", command, CLOCK_FACTOR * options.seconds, children
        )
    except subprocess.TimeoutExpired:
        return replace(blank, verdict=Verdict.HUNG, note="the child did not end in time")
    lost = replace(blank, verdict=Verdict.LOST, note=done.stderr.strip()[-_LAST_WORDS:])
    if done.returncode not in (ExitStatus.HELD, ExitStatus.VIOLATION):
        return lost
    try:
        report = json.loads(done.stdout)
        failure = report["failure"]
    except (ValueError, KeyError, TypeError):
        return lost
    if failure is None:
        return replace(blank, verdict=Verdict.SURVIVED)
    found = tuple(dict.fromkeys(entry["invariant"] for entry in failure["violations"]))
    return replace(
        blank,
        verdict=Verdict.KILLED,
        seen=found,
        invariants=found,
        expected=bool(set(found) & set(expects)),
        examples=report["asked"] - 1,
        reproduction=failure["command"],
    )


def _kernel_run(blank: FaultRun, trial: Trial, target: str) -> FaultRun:
    """Run a kernel campaign in a child of its own and judge how it ended: where the catalogue says that the fault
    shows, else over few cells that hold every pair.
    """
    options, expects = trial.options, () if trial.fault is None else trial.fault.expects
    sought = None if trial.fault is None else trial.fault.sought
    if sought is None:
        plan = KernelPlan(KERNEL_EXAMPLES, options.seed, options.seconds, pairwise=True, fault=blank.fault)
    else:
        plan = KernelPlan(
            SOUGHT_EXAMPLES,
            options.seed,
            options.seconds,
            sought.kernels,
            sought.profiles,
            sought.lengths,
            fault=blank.fault,
            shrink=options.shrink,
        )
    try:
        report = run_target(TARGETS[target], plan)
    except CrucibleError as error:
        return replace(blank, verdict=Verdict.LOST, note=str(error)[-_LAST_WORDS:])
    failure = report["failure"]
    if failure is not None:
        found = tuple(dict.fromkeys(entry["invariant"] for entry in failure["violations"]))
        known = bool(set(found) & set(expects))
        return replace(blank, verdict=Verdict.KILLED, seen=found, invariants=found, expected=known,
                       examples=report["examples"])  # fmt: skip
    if report["not_run"] is not None:
        return replace(blank, note=report["not_run"])
    if report["cut_short"]:
        return replace(blank, verdict=Verdict.HUNG, note=f"not through after {options.seconds:g} s")
    return replace(blank, verdict=Verdict.SURVIVED)


def totals(runs: Sequence[FaultRun]) -> dict[str, Any]:
    """Return campaigns, how many of them killed, how many of those by a crash of the engine alone, or told by none of
    the invariants that the fault names, and the medians over the kills: ``by_driver``, since a seed, an example, a
    kernel call and a question are no common measure.

    None where nothing has the figure.
    """
    killed = [run for run in runs if run.verdict is Verdict.KILLED]
    drivers = dict.fromkeys(run.driver or run.depth for run in runs)
    return {
        "runs": len(runs),
        "killed": len(killed),
        "by_crash_alone": sum(run.by_crash_alone for run in killed),
        "told_otherwise": sum(run.told_otherwise for run in killed),
        "by_driver": {
            driver: _figures([run for run in killed if (run.driver or run.depth) == driver])
            for driver in drivers
        },
    }


def _figures(killed: Sequence[FaultRun]) -> dict[str, Any]:
    values = {
        name: [value for run in killed if (value := getattr(run, name)) is not None]
        for name in ("examples", "steps", "length")
    }
    return {
        "killed": len(killed),
        **{f"median_{name}": median(found) if found else None for name, found in values.items()},
        "longest": max(values["length"], default=None),
    }


def _start(
    name: str, trial: Trial, server: ForkServer | None, children: set[subprocess.Popen[str]]
) -> subprocess.CompletedProcess[str] | CrucibleError | None:
    options = trial.options
    command = [name, "--steps", str(options.steps)]
    if _is_raw(trial):
        command += ["--raw", str(options.raw_seeds), "--seed", str(options.seed * options.raw_seeds)]
    else:
        command += ["--depth", trial.depth.value, "--examples", str(options.examples)]
        command += ["--seed", str(options.seed)]
    if options.out is not None:
        command += ["--out", str(options.out)]
    if not options.shrink:
        command.append("--no-shrink")
    command += ["--processor-seconds", str(math.ceil(options.seconds))]
    try:
        seconds = CLOCK_FACTOR * options.seconds
        if server is not None and trial.depth is Depth.LEDGER:
            done = _forked(command, seconds, server)
        else:
            done = _interpreter("kvcrucible.fuzz.faults.child", command, seconds, children)
    except subprocess.TimeoutExpired:
        return None
    except CrucibleError as gone:
        return gone
    return None if done.returncode == -signal.SIGXCPU else done


def _interpreter(
    module: str, arguments: Sequence[str], seconds: float, children: set[subprocess.Popen[str]]
) -> subprocess.CompletedProcess[str]:
    """Return how a fresh interpreter ended, one of ``children`` meanwhile; raises ``TimeoutExpired``."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        children.add(child)
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        finally:
            children.discard(child)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def _forked(arguments: list[str], seconds: float, server: ForkServer) -> subprocess.CompletedProcess[str]:
    """Return how a fork ended; raises ``TimeoutExpired``, or ``CrucibleError`` for a server that is gone."""
    told = server.ask({"arguments": arguments, "seconds": seconds})
    if told["returncode"] is None:
        raise subprocess.TimeoutExpired(arguments, seconds)
    return subprocess.CompletedProcess(arguments, told["returncode"], told["stdout"], told["stderr"])


def _judge(
    blank: FaultRun,
    expects: Sequence[str],
    done: subprocess.CompletedProcess[str] | CrucibleError | None,
    shrunk: bool,
) -> FaultRun:
    if done is None:
        return replace(blank, verdict=Verdict.HUNG, note="the child did not end in time")
    if isinstance(done, CrucibleError):
        return replace(blank, verdict=Verdict.LOST, note=str(done))
    lost = replace(blank, verdict=Verdict.LOST, note=done.stderr.strip()[-_LAST_WORDS:])
    if done.returncode not in (ExitStatus.HELD, ExitStatus.VIOLATION):
        return lost
    try:
        failure = json.loads(done.stdout)["failure"]
    except (ValueError, KeyError, TypeError):
        # A child may end with the status of a violation and yet leave no report: that proves nothing.
        return lost
    if failure is None:
        return replace(blank, verdict=Verdict.SURVIVED)
    invariants = tuple(dict.fromkeys(found["invariant"] for found in failure["violations"]))
    message = failure["violations"][0]["message"]
    if invariants == (ENGINE_FAULT,) and _WRITTEN_WRONGLY.search(message):
        return replace(
            blank, verdict=Verdict.LOST, note=f"the fault is written wrongly: {message}"[:_LAST_WORDS]
        )
    seen = tuple(failure["first_seen"]["invariants"])
    return replace(
        blank,
        verdict=Verdict.KILLED,
        seen=seen,
        invariants=invariants,
        expected=bool({*invariants, *seen} & set(expects)),
        examples=failure["first_seen"]["examples"],
        steps=failure["first_seen"]["steps"],
        length=len(failure["steps"]) if shrunk else None,
        reproduction=failure["reproduction"],
    )
