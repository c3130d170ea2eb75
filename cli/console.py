"""What the command groups share: consoles, safe text from data, and JSON output.

Text that comes from data (file names, trace lines, model output) passes through :func:`safe`, so that neither markup
nor control characters reach the terminal raw.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

#: Longest piece of foreign text that is shown; a hostile line could be megabytes.
MAX_SHOWN_CHARACTERS = 2_000

#: Seeds that are drawn when none is given are below this: short enough to be typed again.
_SEED_LIMIT = 1_000_000

#: Columns where output goes to a file, a pipe or a CI log, which have no width of their own: at the 80 of a terminal
#: that does not tell, tables of a dozen columns fold letter by letter.  ``COLUMNS`` sets another.
COLUMNS_WITHOUT_TERMINAL = 160

#: Seeds that were drawn in this process.
_drawn: list[int] = []


def visible(text: str) -> str:
    """Return ``text`` with every control and format character spelled out, at most ``MAX_SHOWN_CHARACTERS`` long."""
    cut = text[:MAX_SHOWN_CHARACTERS]
    shown = "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut
    )
    return shown + ("…" if len(text) > MAX_SHOWN_CHARACTERS else "")


def visible_end(text: str) -> str:
    """Return the end of ``text`` as :func:`visible` shows it: of a traceback, the end says what happened."""
    return ("…" if len(text) > MAX_SHOWN_CHARACTERS else "") + visible(text[-MAX_SHOWN_CHARACTERS:])


def safe(text: str) -> str:
    """Return ``text`` fit for a rich console: control characters spelled out, markup escaped."""
    return escape(visible(text))


def console() -> Console:
    """Return a console on standard output; it honours ``NO_COLOR``, ``COLUMNS`` and terminals that are none."""
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if told else COLUMNS_WITHOUT_TERMINAL)


def stderr_console() -> Console:
    """Return a console on standard error, where progress and remarks go so that ``--json`` output stays clean."""
    return Console(stderr=True, highlight=False)


def stderr_line(text: str) -> None:
    """Write one plain line to standard error."""
    sys.stderr.write(visible(text) + "\n")


def seed_or_drawn(seed: int | None) -> int:
    """Return ``seed``, or one that is drawn where none was given; what uses it prints it."""
    if seed is None:
        seed = secrets.randbelow(_SEED_LIMIT)
        _drawn.append(seed)
    return seed


def say_drawn_seed() -> None:
    """Write to standard error which seed was drawn, if one was: a command that falls over has no report to say it."""
    for seed in _drawn:
        stderr_line(f"drawn: --seed {seed}")


def print_json(value: Any) -> None:
    """Write ``value`` as one JSON document to standard output; NaN and infinities are refused, not written."""
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")
