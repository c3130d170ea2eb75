"""``kvcrucible mutants``: changes the engine's source in small ways, one at a time, and shows which go unnoticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.console import console, print_json, safe
from kvcrucible.cli.faults import require_writable
from kvcrucible.cli.optional import require_modules
from kvcrucible.cli.progress import progress_bar
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.fuzz.mutants.equivalent import Equivalent
    from kvcrucible.fuzz.mutants.judge import Budget
    from kvcrucible.fuzz.mutants.mutant import Mutant
    from kvcrucible.fuzz.mutants.run import MutantRun


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    group = typer.Typer(
        no_args_is_help=True, help="Change the engine's source in small ways and see which go unnoticed."
    )
    app.add_typer(group, name="mutants")

    @group.command("list")
    def list_mutants(json_output: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
        """Count the mutants of each module, and say what is left out and why."""
        mutants = _all()
        if json_output:
            print_json([_mutant_to_plain(one) for one in mutants])
        else:
            _print_list(mutants)

    @group.command()
    def show(mutant: str = typer.Argument(help="Id of a mutant.")) -> None:
        """Show one mutant: its difference, and an entry for the file of equivalent ones."""
        _print_mutant(_find([mutant])[0])

    @group.command()
    def run(
        mutants: list[str] = typer.Argument(None, help="Ids of mutants."),
        everything: bool = typer.Option(False, "--all", help="Judge every mutant."),
        sample: int = typer.Option(0, min=0, help="Judge so many, drawn over modules and operators."),
        seed: int = typer.Option(0, min=0, help="Decides the sample, and is the first seed."),
        seeds: int = typer.Option(600, min=1, help="Seeds after which a mutant has survived."),
        rules: int = typer.Option(120, min=1, max=1000, help="Most rules in one seed."),
        jobs: int = typer.Option(2, min=1, help="Mutants at a time; never more than there are cores."),
        out: Path = typer.Option(None, help="File of results; what it holds is not judged again."),
        again: list[str] = typer.Option([], help="Verdicts in it that are judged again all the same."),
        unchanged: bool = typer.Option(True, help="Judge the engine as it is too: it has to survive."),
        json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
    ) -> None:
        """Judge mutants by seeds of the raw loop; status 1 where one survives that is not listed as equivalent."""
        from kvcrucible.fuzz.mutants.judge import Budget
        from kvcrucible.fuzz.mutants.run import run_mutants
        from kvcrucible.fuzz.mutants.sample import draw

        if bool(mutants) + everything + bool(sample) != 1:
            raise InputError("name mutants, or give either --sample or --all")
        if again and out is None:
            raise InputError("--again is about what --out holds; give --out too")
        verdicts = _verdicts(again)
        chosen = _find(mutants) if mutants else draw(_all(), sample, seed) if sample else _all()
        budget = Budget(seeds, rules, seed)
        done = _judge(chosen, budget, jobs, out, verdicts)
        held = run_mutants([None], budget, 1)[0] if unchanged else None
        _report(chosen, done, held, budget, json_output)


def _report(
    chosen: Sequence[Mutant],
    done: dict[str, MutantRun],
    held: MutantRun | None,
    budget: Budget,
    json_output: bool,
) -> None:
    from kvcrucible.fuzz.mutants.equivalent import listed_among
    from kvcrucible.fuzz.mutants.provenance import provenance
    from kvcrucible.fuzz.mutants.results import to_plain, totals

    listed = listed_among(chosen)
    runs = [done[one.id] for one in chosen]
    sums = totals(runs, listed)
    if json_output:
        plain = {
            "format": "kvcrucible.mutants-report/1",
            **provenance(budget),
            "totals": sums,
            "results": [
                {
                    **to_plain(one, done[one.id]),
                    "listed": asdict(listed[one.id]) if one.id in listed else None,
                }
                for one in chosen
            ],
            "unchanged": None if held is None else {**asdict(held), "verdict": held.verdict.value},
        }
        print_json(plain)
    else:
        _print_runs(chosen, done, listed, sums)
        if held is not None:
            told = f" by {', '.join(held.invariants)}" if held.invariants else ""
            console().print(f"the engine as it is: {held.verdict.value}{safe(told)}")
    raise typer.Exit(status_of(sums, held))


def status_of(sums: dict[str, Any], held: MutantRun | None) -> ExitStatus:
    """Return the exit status: 0 where every mutant was killed or is listed rightly, and the engine as it is was not."""
    from kvcrucible.fuzz.mutants.verdicts import MutantVerdict

    if sums["unlisted_survivors"] or sums["wrongly_listed"]:
        return ExitStatus.VIOLATION
    if held is not None and held.verdict is not MutantVerdict.SURVIVED:
        return ExitStatus.VIOLATION if held.verdict is MutantVerdict.KILLED else ExitStatus.INTERNAL
    if sums["lost"]:
        return ExitStatus.INTERNAL
    nothing_judged = sums["stillborn"] == sums["mutants"]
    return ExitStatus.INCONCLUSIVE if sums["hung"] or nothing_judged else ExitStatus.HELD


def _judge(
    chosen: Sequence[Mutant], budget: Budget, jobs: int, out: Path | None, again: frozenset[Any]
) -> dict[str, MutantRun]:
    from kvcrucible.fuzz.mutants.results import ResultsFile, to_do
    from kvcrucible.fuzz.mutants.run import run_mutants

    file = None
    if out is not None:
        require_writable(out, file=True)
        file = ResultsFile(out, budget)
    there = {} if file is None else dict(file.runs)
    left = to_do(chosen, there, again)
    by_id = {one.id: one for one in left}
    with progress_bar() as progress:
        task = progress.add_task("mutants", total=len(left))

        def keep(run: MutantRun) -> None:
            assert run.mutant is not None
            there[run.mutant] = run
            if file is not None:
                file.add(by_id[run.mutant], run)
            progress.advance(task)

        run_mutants(left, budget, jobs, keep)
    return there


def _all() -> list[Mutant]:
    require_modules("mutants", "libcst", "mutmut")
    from kvcrucible.fuzz.mutants.generate import mutants_of
    from kvcrucible.fuzz.mutants.subjects import subjects

    return [one for module in subjects() for one in mutants_of(module)]


def _find(ids: Sequence[str]) -> list[Mutant]:
    """Return each mutant that is named, once however often that is; raises ``InputError`` for an unknown id."""
    from kvcrucible.fuzz.mutants.subjects import ENGINE, subjects

    modules = {name: f"{ENGINE}.{name.split(':')[0]}" for name in ids}
    known = subjects()
    for name, module in modules.items():
        if module not in known:
            raise _no_mutant(name)
    require_modules("mutants", "libcst", "mutmut")
    from kvcrucible.fuzz.mutants.generate import mutants_of

    found = []
    for name in modules:
        there = [one for one in mutants_of(modules[name]) if one.id == name]
        if not there:
            raise _no_mutant(name)
        found += there
    return found


def _no_mutant(name: str) -> InputError:
    return InputError(f"there is no mutant {name!r:.120}; `kvcrucible mutants list --json` has them all")


def _verdicts(names: Sequence[str]) -> frozenset[Any]:
    from kvcrucible.fuzz.mutants.verdicts import MutantVerdict

    known = [verdict.value for verdict in MutantVerdict]
    for name in names:
        if name not in known:
            raise InputError(f"--again {name!r:.40} is no verdict; known: {', '.join(known)}")
    return frozenset(map(MutantVerdict, names))


def _mutant_to_plain(mutant: Mutant) -> dict[str, Any]:
    keys = ("module", "function", "operator", "line", "before", "after", "nth")
    return {"id": mutant.id, **{key: getattr(mutant, key) for key in keys}}


def _print_list(mutants: Sequence[Mutant]) -> None:
    from kvcrucible.cli.tables import Table
    from kvcrucible.fuzz.mutants.operators import NOT_USED
    from kvcrucible.fuzz.mutants.subjects import ENGINE, LEFT_OUT

    screen = console()
    for title, counts in (
        ("module", Counter(one.module.removeprefix(f"{ENGINE}.") for one in mutants)),
        ("operator", Counter(one.operator for one in mutants)),
    ):
        table = Table(title, title=f"{len(mutants)} mutants by {title}")
        table.add_column("mutants", justify="right")
        for name, times in sorted(counts.items()):
            table.add_row(name, f"{times:,}")
        screen.print(table)
    table = Table("left out", "because", title="what no mutant is made of")
    for name, reason in (*LEFT_OUT.items(), *NOT_USED.items()):
        table.add_row(safe(name), safe(reason))
    screen.print(table)


def _print_mutant(mutant: Mutant) -> None:
    import yaml

    from kvcrucible.fuzz.faults.catalogue import source_of
    from kvcrucible.fuzz.mutants.subjects import ENGINE

    source = source_of(mutant.module)
    screen = console()
    screen.print(f"[bold]{safe(mutant.id)}[/bold]: {mutant.operator} in {safe(mutant.function)}")
    difference = unified_diff(
        source.splitlines(), mutant.apply_to(source).splitlines(), mutant.module, "changed", lineterm=""
    )
    for line in difference:
        screen.print(safe(line))
    inner = mutant.module.removeprefix(f"{ENGINE}.")
    entry = {**_mutant_to_plain(mutant), "module": inner, "reason": ""}
    kept = {key: value for key, value in entry.items() if key not in ("id", "line") and value != 0}
    screen.print(safe(yaml.safe_dump([kept], sort_keys=False, allow_unicode=True, width=110)))


def _print_runs(
    chosen: Sequence[Mutant], done: dict[str, MutantRun], listed: dict[str, Equivalent], sums: dict[str, Any]
) -> None:
    from kvcrucible.fuzz.mutants.verdicts import MutantVerdict

    screen = console()
    for one in chosen:
        run = done[one.id]
        if run.verdict is MutantVerdict.KILLED and one.id not in listed:
            continue
        screen.print(f"[bold]{run.verdict.value}[/bold] {safe(one.id)} (line {one.line}, {one.operator})")
        for sign, text in (("-", one.before), ("+", one.after)):
            for line in text.splitlines():
                screen.print(safe(f"  {sign} {line}"))
        if run.verdict is MutantVerdict.KILLED:
            screen.print("  listed as a survivor, yet killed: the entry is wrong")
        elif one.id in listed:
            told_by = listed[one.id].told_by
            kind = "equivalent" if told_by is None else f"told by {told_by}"
            screen.print(safe(f"  {kind}: {listed[one.id].reason}"))
        elif run.verdict is not MutantVerdict.SURVIVED:
            screen.print(safe(f"  {run.note}"))
    figures = ""
    if sums["killed"]:
        figures = (
            f" ({sums['by_crash_alone']} of them by a crash alone); seeds to a kill: median "
            f"{sums['median_seeds']:g}, 95th percentile {sums['p95_seeds']}, most {sums['most_seeds']}"
        )
    screen.print(f"[bold]killed {sums['killed']} of {sums['counted']}[/bold]{figures}")
    screen.print(
        f"survived {len(sums['unlisted_survivors'])}; of those that are listed {sums['equivalent']} equivalent, "
        f"{sums['told_by_tests']} told by tests; "
        f"hung {sums['hung']}, judge fell over {sums['lost']}, not importable {sums['stillborn']}"
    )
