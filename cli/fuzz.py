"""``kvcrucible fuzz``: campaigns of random operation sequences against the reference, of several kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from kvcrucible.cli.console import seed_or_drawn

#: Where failing examples are written unless told otherwise; git ignores it.
DEFAULT_OUT = Path("results/failures")

#: Examples of a campaign unless told otherwise.
_DEFAULT_EXAMPLES = 300

#: Examples of each cell of a kernel campaign unless told otherwise.
_EXAMPLES_A_CELL = 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command()
    def fuzz(
        context: typer.Context,
        engine: str = typer.Option(
            "paged",
            help="Engine under test: paged, torch-paged-attention, one of the judge (canary, honest-fifo, …), or your "
            "own as package.module:factory.",
        ),
        depth: str = typer.Option("both", help="ledger (no tensors), payload (rows are read back), or both."),
        pools: str = typer.Option(
            "any", help="Pools of the engine: main, main+mtp, main+draft; any draws among them."
        ),
        profile: str = typer.Option("any", help="Storage profile at payload depth; any draws among them."),
        host: str = typer.Option("any", help="Host tier: on, off; any draws among them."),
        device: str = typer.Option(
            "cpu", help="Where the engine's memory and streams are: cpu, cuda (payload depth alone)."
        ),
        capacity_at: str | None = typer.Option(
            None,
            help="Pools of as many pages as one longest sequence takes, L = ceil(S / P), or so many more: L-1,L,L+1.",
        ),
        matrix: bool = typer.Option(
            False, help="Run every combination of pools, profile and host at payload depth, in processes."
        ),
        jobs: int = typer.Option(
            1, "--jobs", "-j", min=1, help="Processes of --matrix or --raw; never more than there are cores."
        ),
        raw: bool = typer.Option(
            False,
            "--raw",
            help="Volume: independent seeds at ledger depth, without Hypothesis (decision 0027).",
        ),
        seeds: int | None = typer.Option(
            None,
            min=1,
            help="With --raw: seeds, from --seed on; 3,000, or with --seconds as many as there is time for.",
        ),
        replay_twice: bool = typer.Option(
            False,
            "--replay-twice",
            help="With --raw: run every seed twice and compare the state after every step.",
        ),
        digest: bool = typer.Option(
            False, "--digest", help="With --raw: print a digest of the state after every step of every seed."
        ),
        bench: bool = typer.Option(
            False,
            "--bench",
            help="With --raw: measure its speed beside Hypothesis's, in turns, and where time goes.",
        ),
        examples: int | None = typer.Option(
            None,
            min=1,
            help="Examples to run, at least: 300, or 200 in each configuration of --matrix, or 3 in each cell of "
            "--kernels. From 300 on up to four times as many where coverage goals are missed.",
        ),
        goals: bool = typer.Option(
            True,
            help="Hold a campaign of 300 examples or more to its coverage goals; a part of one is not whole.",
        ),
        steps: int = typer.Option(60, min=1, max=1000, help="Most rules in one example."),
        seed: int | None = typer.Option(None, min=0, help="Seed; drawn and printed when not given."),
        seconds: float | None = typer.Option(
            None, min=0.0, help="Stop after about this time, cut short (exit 3)."
        ),
        out: Path = typer.Option(DEFAULT_OUT, help="Folder for reproductions of failures."),
        database: Path | None = typer.Option(None, help="Folder in which Hypothesis keeps failing examples."),
        kernels: bool = typer.Option(False, "--kernels", help="The kernels by themselves, in every cell."),
        backend: str = typer.Option(
            "any", help="With --kernels: cpu, torch, interpreter (Triton's), cuda; any is all that can run."
        ),
        pairwise: bool = typer.Option(
            False,
            "--pairwise",
            help="With --kernels: a tenth of the cells, in which every pair of values comes up, for a slow back-end.",
        ),
        json_output: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    ) -> None:
        """Drive an engine and the reference in lock step until something differs, or all examples held."""
        from kvcrucible.cli import fuzz_options as options
        from kvcrucible.fuzz.adapters.external import use_engine

        mode = options.mode_of(kernels=kernels, matrix=matrix, raw=raw, bench=bench)
        options.refuse_unused(context, mode)
        use_engine(engine)
        seed = seed_or_drawn(seed)
        if mode is options.KERNELS:
            from kvcrucible.cli.fuzz_kernels import kernels_and_print
            from kvcrucible.fuzz.kernels.run import KernelPlan

            profiles = options.profiles_of(profile)
            asked = KernelPlan(
                examples or _EXAMPLES_A_CELL, seed, seconds, profiles=profiles, pairwise=pairwise
            )
            status = kernels_and_print(backend, asked, out, json_output=json_output)
        elif mode is options.MATRIX:
            from kvcrucible.cli.fuzz_matrix import run_and_print

            status = run_and_print(examples, steps, seed, jobs, out, json_output=json_output)
        elif mode is options.CAMPAIGN:
            from kvcrucible.cli.fuzz_campaign import campaign_and_print
            from kvcrucible.fuzz.campaign import Plan

            plan = Plan(
                engine,
                options.depths_of(engine, depth, device),
                _DEFAULT_EXAMPLES if examples is None else examples,
                steps,
                seed,
                seconds,
                database,
                options.backends_of(pools),
                options.profiles_of(profile),
                options.hosts_of(host),
                options.capacities_of(capacity_at),
                device=device,
                held_to_goals=goals,
            )
            status = campaign_and_print(plan, out, json_output=json_output)
        else:
            from kvcrucible.cli.fuzz_raw import bench_and_print, plan_of, volume_and_print

            backends, hosts = options.backends_of(pools), options.hosts_of(host)
            volume = plan_of(engine, seed, seeds, seconds, steps, backends, hosts)
            if mode is options.BENCH:
                status = bench_and_print(volume, out, json_output=json_output)
            else:
                volume = replace(volume, digest=digest, replay_twice=replay_twice)
                status = volume_and_print(volume, jobs, out, json_output=json_output)
        raise typer.Exit(status)
