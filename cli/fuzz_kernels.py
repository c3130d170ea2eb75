"""``kvcrucible fuzz --kernels``: the kernels by themselves, on every back-end that can run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import typer

from kvcrucible.cli.console import console, print_json, safe, stderr_console, stderr_line
from kvcrucible.contract.errors import InputError


def fuzz_kernels(
    backend: str, profile: str, examples: int, seed: int, seconds: float | None, out: Path, as_json: bool
) -> NoReturn:
    """Run kernel campaigns and leave with their common exit status; ``backend``: a target's name, or any."""
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.contract.profiles import storage_profile
    from kvcrucible.fuzz.kernels.backends import TARGETS
    from kvcrucible.fuzz.kernels.run import KernelPlan, run_target, status_of

    require_modules("engine", "torch", "numpy")
    if backend != "any" and backend not in TARGETS:
        raise InputError(f"unknown kernel back-end {safe(backend)!r}; use {', '.join(TARGETS)} or any")
    profiles = () if profile == "any" else (storage_profile(profile).name,)
    chosen = list(TARGETS.values()) if backend == "any" else [TARGETS[backend]]
    reports = []
    for target in chosen:
        with stderr_console().status(f"fuzzing kernels on {target.name}") as spinner:

            def show(name: str, done: int, cells: int, spinner: Any = spinner) -> None:
                spinner.update(f"fuzzing kernels on {name}: {done} of {cells} cells")

            plan = KernelPlan(examples, seed, seconds, profiles=profiles, on_progress=show)
            reports.append(run_target(target, plan))
    paths = [_keep(report, out) for report in reports]
    if as_json:
        print_json({"kernels": reports})
    else:
        for report, path in zip(reports, paths, strict=True):
            _show(report, path)
    raise typer.Exit(status_of(reports))


def _keep(report: dict[str, Any], out: Path) -> Path | None:
    """Write the failing case of a report, which ``fuzz.kernels.child --case`` runs again."""
    if report["failure"] is None:
        return None
    path = out / f"kernel-{report['target']}.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(report["failure"]["case"] + "\n", encoding="utf-8")
    except OSError as error:
        stderr_line(f"no case was written to {out}: {error}; name another folder with --out")
        return None
    return path


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
