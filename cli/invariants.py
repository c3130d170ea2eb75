"""``kvcrucible invariants``: the catalogue, or one entry with what its checker verifies and does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kvcrucible.invariants.judgements import Judgement
    from kvcrucible.invariants.registry import Invariant


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command("invariants")
    def invariants(
        name: str | None = typer.Argument(None, metavar="[ID]", help="Show this one in full."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """List the invariants: ids, statements, sources, and what judges them.

        Reports also name judgements of the harness itself; they stand in a section of their own.
        """
        from kvcrucible.cli.console import print_json
        from kvcrucible.invariants.judgements import JUDGEMENTS
        from kvcrucible.invariants.registry import INVARIANTS

        if name in JUDGEMENTS:
            judgement = JUDGEMENTS[name]
            if as_json:
                print_json(_plain_judgement(judgement))
            else:
                _show_judgement(judgement)
        elif name is not None:
            entry = _find(name)
            if as_json:
                print_json(_plain(entry) | {"documentation": entry.documentation})
            else:
                _show_one(entry)
        elif as_json:
            print_json(
                [
                    *map(_plain, INVARIANTS.values()),
                    *map(_plain_judgement, JUDGEMENTS.values()),
                ]
            )
        else:
            _show_all()


def _find(name: str) -> Invariant:
    from difflib import get_close_matches

    from kvcrucible.contract.errors import InputError
    from kvcrucible.invariants.judgements import JUDGEMENTS
    from kvcrucible.invariants.registry import INVARIANTS

    if name in INVARIANTS:
        return INVARIANTS[name]
    near = get_close_matches(name, [*INVARIANTS, *JUDGEMENTS], n=3, cutoff=0.5)
    hint = f"near matches: {', '.join(near)}" if near else "list them with `kvcrucible invariants`"
    raise InputError(f"no invariant {name!r}; {hint}")


def _plain(entry: Invariant) -> dict[str, Any]:
    return {
        "id": entry.id,
        "status": "checked",
        "statement": entry.statement,
        "source": entry.source,
        "judged": entry.depth.value,
        "checker": entry.checker.__name__ if entry.checker else None,
        "harness": entry.judge.__name__ if entry.judge else None,
        "needs": sorted(entry.checker.needs) if entry.checker else [],
        "step_check": bool(entry.checker and entry.checker.is_local),
    }


def _plain_judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "id": judgement.id,
        "status": "judgement",
        "statement": judgement.statement,
        "advice": judgement.advice,
    }


def _show_all() -> None:
    from kvcrucible.cli.console import console
    from kvcrucible.cli.tables import Table
    from kvcrucible.invariants.judgements import JUDGEMENTS
    from kvcrucible.invariants.registry import INVARIANTS

    table = Table(title="Invariants")
    table.add_column("id", no_wrap=True, style="bold")
    table.add_column("statement", ratio=1)
    table.add_column("source", max_width=10)
    table.add_column("judged", max_width=11)
    for entry in INVARIANTS.values():
        table.add_row(entry.id, entry.statement, entry.source, entry.depth.value)
    out = console()
    out.print(table)
    out.print(f"{len(INVARIANTS)} invariants.")
    out.print()
    others = Table(title="Judgements of the harness, which are no invariants")
    others.add_column("id", no_wrap=True, style="bold")
    others.add_column("statement", ratio=1)
    for judgement in JUDGEMENTS.values():
        others.add_row(judgement.id, judgement.statement)
    out.print(others)


def _show_judgement(judgement: Judgement) -> None:
    from kvcrucible.cli.console import console, safe

    out = console()
    out.print(f"[bold]{judgement.id}[/bold]  (a judgement of the harness, no invariant)")
    out.print(safe(judgement.statement))
    out.print()
    out.print(safe(judgement.advice))


def _show_one(entry: Invariant) -> None:
    from kvcrucible.cli.console import console, safe

    out = console()
    out.print(f"[bold]{entry.id}[/bold]  (DESIGN {entry.source}; judged: {entry.depth.value})")
    out.print(safe(entry.statement))
    out.print()
    out.print(safe(entry.documentation))
    for kind, code in (("checker", entry.checker), ("harness", entry.judge)):
        if code is not None:
            out.print(f"{kind}: {code.__module__}.{code.__qualname__}", style="dim", soft_wrap=True)
    if entry.checker is not None:
        out.print(f"needs: {', '.join(sorted(entry.checker.needs))}", style="dim")
