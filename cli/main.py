"""Assembles the command line from one module per group; each module imports its machinery only when it runs."""

from __future__ import annotations

import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from types import FrameType

import typer

from kvcrucible import __version__
from kvcrucible.cli.console import say_drawn_seed, stderr_line, visible_end
from kvcrucible.cli.output import flush_output, give_up_output, guard_output
from kvcrucible.contract.errors import CrucibleError, ExitStatus, InputError, NotRunError, OutputFailed

#: Modules of ``kvcrucible.cli`` that have a ``register(app)``; the order is the order of ``--help``.
GROUPS = (
    "fuzz",
    "faults",
    "nth_failure",
    "judge",
    "mutants",
    "replay",
    "rounds",
    "check",
    "capacity",
    "layout",
    "plan",
    "arena",
    "kernels",
    "bench_decode",
    "perf",
    "generate",
    "model",
    "invariants",
    "doctor",
)


def build_app() -> typer.Typer:
    """Return the whole command-line application, without running it."""
    app = typer.Typer(
        name="kvcrucible",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Finds the silent bugs of paged KV caches: fuzz, replay, compare, measure.",
    )

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
        if version:
            print(__version__)
            raise typer.Exit()

    for name in GROUPS:
        import_module(f"kvcrucible.cli.{name}").register(app)
    return app


def main() -> None:
    """Entry point: run the application and turn our errors into the exit statuses of the contract.

    To be asked to end (``SIGTERM``, by ``timeout`` or a job that is cancelled) is the same as an interruption from the
    keyboard: a campaign reports what it has done until then.
    """
    signal.signal(signal.SIGTERM, _end)
    guard_output()
    try:
        try:
            _run()
        finally:
            flush_output()
    except OutputFailed as failed:
        give_up_output()
        if failed.reason is not None:
            with suppress(OutputFailed):
                stderr_line(
                    f"error: the output cannot be written ({failed.reason}); make room, or name another place"
                )
        raise


def _end(number: int, frame: FrameType | None) -> None:
    # Who asks again would only cut off the report.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def _run() -> None:
    try:
        build_app()()
    except SystemExit as ended:
        # What a command does not catch itself, the library of the command line makes an exit without a word.
        if ended.code == ExitStatus.INTERRUPTED:
            stderr_line("interrupted")
            say_drawn_seed()
        raise
    except NotRunError as error:
        stderr_line(f"not run: {error}")
        sys.exit(ExitStatus.NOT_RUN)
    except InputError as error:
        stderr_line(f"error: {error}")
        sys.exit(ExitStatus.USAGE)
    except KeyboardInterrupt:
        stderr_line("interrupted")
        say_drawn_seed()
        sys.exit(ExitStatus.INTERRUPTED)
    except CrucibleError as error:
        from kvcrucible.invariants.violation import InvariantViolated

        if isinstance(error, InvariantViolated):
            # Found by a command that looks for something else, such as what a failure leaves behind.
            stderr_line(f"violated: {error}; `kvcrucible fuzz --raw` shows the steps")
            say_drawn_seed()
            sys.exit(ExitStatus.VIOLATION)
        stderr_line(f"error: {error}")
        say_drawn_seed()
        sys.exit(ExitStatus.INTERNAL)
    except Exception:
        # Python's own status for an uncaught exception is 1, which here means that an invariant is broken.
        stderr_line(visible_end(traceback.format_exc()))
        say_drawn_seed()
        sys.exit(ExitStatus.INTERNAL)


if __name__ == "__main__":
    main()
