"""``kvcrucible fuzz --kernels``: the kernels by themselves, on every back-end that can run here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcrucible.cli.console import console, print_json, safe
from kvcrucible.cli.former import set_aside
from kvcrucible.cli.progress import Spinner, spinner
from kvcrucible.cli.reproduced import written_or_told
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.fuzz.kernels.run import KernelPlan


def kernels_and_print(backend: str, plan: KernelPlan, out: Path, *, json_output: bool) -> ExitStatus:
    """Run kernel campaigns, print what became of them, and return their common exit status.

    ``backend``: a target's name, or any.  Raises ``InputError`` for an unknown one, ``NotRunError`` without torch.
    """
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.fuzz.kernels.backends import TARGETS
    from kvcrucible.fuzz.kernels.run import run_target, status_of

    if backend != "any" and backend not in TARGETS:
        raise InputError(f"unknown kernel back-end {backend!r:.100}; use {', '.join(TARGETS)} or any")
    require_modules("engine", "torch", "numpy")
    chosen = list(TARGETS.values()) if backend == "any" else [TARGETS[backend]]
    reports = []
    for target in chosen:
        with spinner(f"fuzzing kernels on {target.name}") as shown:

            def show(name: str, done: int, cells: int, shown: Spinner = shown) -> None:
                shown.say(f"fuzzing kernels on {name}: {done} of {cells} cells")

            reports.append(run_target(target, replace(plan, on_progress=show)))
    paths = [_keep(report, out) for report in reports]
    if json_output:
        print_json({"kernels": reports})
    else:
        for report, path in zip(reports, paths, strict=True):
            _show(report, path)
    return status_of(reports)


def _keep(report: dict[str, Any], out: Path) -> Path | None:
    """Write the failing case of a report, which ``fuzz.kernels.child --case`` runs again."""
    if report["failure"] is None:
        return None

    def write() -> Path:
        path = out / f"kernel-{report['target']}.json"
        out.mkdir(parents=True, exist_ok=True)
        set_aside(path)
        path.write_text(report["failure"]["case"] + "\n", encoding="utf-8")
        return path

    return written_or_told("case", out, write)


def _show(report: dict[str, Any], path: Path | None) -> None:
    screen = console()
    if report["not_run"] is not None:
        screen.print(f"[bold]{report['target']}[/bold]: not run: {safe(report['not_run'])}", soft_wrap=True)
        return
    verdict = "VIOLATION" if report["failure"] else "cut short" if report["cut_short"] else "held"
    covered = report["cells"] - len(report["uncovered_cells"])
    screen.print(
        f"[bold]{report['target']}[/bold]: {verdict}: {report['examples']} examples in {report['seconds']} s, "
        f"{covered} of {report['cells']} cells, each kernel with each profile at least "
        f"{report['fewest_by_kernel_and_profile']} times; seed {report['seed']}",
        soft_wrap=True,
    )
    if report["failure"] is None:
        for cell in report["uncovered_cells"]:
            screen.print(f"  not covered: {safe(cell)}", soft_wrap=True)
        return
    screen.print(f"  smallest case: {safe(report['failure']['case'])}", soft_wrap=True)
    for found in report["failure"]["violations"]:
        screen.print(f"  [bold]{found['invariant']}[/bold]: {safe(found['message'])}", soft_wrap=True)
    if path is not None:
        screen.print(f"  case: {safe(str(path))}", soft_wrap=True)
