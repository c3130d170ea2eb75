"""``kvcrucible doctor``: what this machine has, and for what it lacks the reason and the remedy.

Looking never fails: an absent or broken library is a line of the report, and the exit status is 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import typer

from kvcrucible.cli.console import console, print_json, safe
from kvcrucible.cli.doctor_findings import (
    LIBRARIES,
    Finding,
    Outcome,
    State,
    abilities,
    accelerator_finding,
    core_finding,
    installed_version,
    kernels_finding,
    library_finding,
    machine_findings,
    model_finding,
    nvml_finding,
    run_probe,
)
from kvcrucible.cli.doctor_probes import PROBES
from kvcrucible.cli.progress import spinner
from kvcrucible.cli.tables import Table

#: Characters of the longest word of a cell: a longer one, mostly a path, would be broken in its middle in a narrow
#: terminal, and could be neither read nor copied.
_LONGEST_WORD = 20


def examine(probe: Callable[[str], Outcome] = run_probe) -> list[Finding]:
    """Look at everything and return the findings in the order of the report.

    ``probe`` runs one probe of ``doctor_probes.PROBES`` by name; two at a time, since each is mostly waiting for disk.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = dict(zip(PROBES, pool.map(probe, PROBES), strict=True))
    findings = [*machine_findings(), core_finding(outcomes["core"])]
    for library in LIBRARIES:
        judge = nvml_finding if library.probe == "nvml" else library_finding
        findings.append(judge(library, installed_version(library.distribution), outcomes[library.probe]))
        if library.probe == "torch":
            findings.append(accelerator_finding(outcomes["torch"]))
            asked = os.environ.get("KVCRUCIBLE_KERNELS", "")
            findings.append(kernels_finding(outcomes["kernels"], outcomes["torch"], asked))
    return [*findings, model_finding()]


def register(app: typer.Typer) -> None:
    """Add the command ``doctor`` to ``app``."""

    @app.command()
    def doctor(
        as_json: bool = typer.Option(False, "--json", help="Write the report as one JSON document."),
    ) -> None:
        """Tell what this machine has; for what it lacks, the reason and the remedy."""
        with spinner("looking at what is installed"):
            findings = examine()
        if as_json:
            print_json(
                {"findings": [asdict(finding) for finding in findings], "lacking": abilities(findings)}
            )
        else:
            show(findings)


def show(findings: list[Finding]) -> None:
    """Print the findings as a table, and below it, whole, what would be broken in a narrow one."""
    style = {State.PRESENT: "green", State.ABSENT: "yellow", State.BROKEN: "red"}
    table = Table("", "state", "detail", "how to get it", title="What this machine has")
    below: list[str] = []
    for finding in findings:
        state = f"[{style[finding.state]}]{finding.state.value}[/]"
        cells = []
        for text in (finding.detail, finding.remedy):
            whole = max(map(len, text.split()), default=0) <= _LONGEST_WORD
            cells.append(text if whole else "see below")
            if not whole:
                below.append(f"{finding.name}: {text}")
        table.add_row(safe(finding.name), state, *map(safe, cells))
    out = console()
    out.print(table)
    for line in below:
        out.print(safe(line), soft_wrap=True)
    if any("pip install" in finding.remedy for finding in findings):
        out.print(
            "`pip install '.[EXTRA]'` is to be run in the checkout of KV Crucible; it is on no package index."
        )
    for work, lacking in abilities(findings).items():
        out.print(safe(f"{work}: {'can run here' if not lacking else 'lacks ' + ', '.join(lacking)}"))
