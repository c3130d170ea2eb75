"""Judgements of the harness itself: what a report may say beside the invariants of DESIGN 5, declared here alone."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

#: The engine raised something that is not a refusal.
ENGINE_FAULT = "engine-fault"

#: The engine answered otherwise than the reference predicts.
PREDICTED_OUTCOME = "predicted-outcome"

#: The engine changed an entry and did not report it as touched.
UNREPORTED_CHANGE = "unreported-change"

#: A failing sequence held when it was run again.
NOT_REPRODUCED = "not-reproduced"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One id that is no invariant: what it says, and what its reader does about it."""

    id: str
    statement: str
    advice: str


#: By id, in the order of the listing.
JUDGEMENTS: dict[str, Judgement] = {
    entry.id: entry
    for entry in (
        Judgement(
            ENGINE_FAULT,
            "The engine raised an exception that is no refusal.",
            "The message names the exception and the place in the engine. If it is how the engine refuses, its adapter "
            "has to translate it.",
        ),
        Judgement(
            PREDICTED_OUTCOME,
            "An answer, or what the engine remembers, differs from what the reference predicts, and no invariant names "
            "the difference more closely.",
            "The message shows both. Either the engine is wrong, or it keeps another contract: then its adapter should "
            "not claim the operation, or a waiver should name the difference.",
        ),
        Judgement(
            UNREPORTED_CHANGE,
            "An entry changed that the engine did not report as touched, so that the checks of single steps never saw "
            "the change.",
            "Mend what the engine reports as touched; an adapter that cannot know it reports nothing, and every step "
            "is judged on the whole snapshot.",
        ),
        Judgement(
            NOT_REPRODUCED,
            "The same steps did not fail when they were run again, so that nothing could be shrunk.",
            "The engine is not deterministic: look for a clock, a random number, an unordered set or memory that is "
            "never written. The violations named beside it are those of the first run.",
        ),
    )
}


def raised(error: BaseException) -> str:
    """Return an exception in words: its type, its message or else the line that raised it, and where.

    The place is the innermost one in ``kvcrucible.engine``, or for another engine the innermost of all; its path starts
    at the package, so that it is the same on every machine.
    """
    frames = [
        (frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    kind, message = type(error).__name__, str(error)
    if not frames:
        return f"{kind}: {message}".rstrip(": ")
    ours = [at for at, (name, _, _) in enumerate(frames) if name.startswith("kvcrucible.engine.")]
    at = ours[-1] if ours else len(frames) - 1
    name, file, line = frames[at]
    text = message or (traceback.extract_tb(error.__traceback__)[at].line or "")
    path = "/".join(Path(file).parts[-(name.count(".") + 1) :])
    return f"{kind}{': ' if text else ''}{text} ({path}:{line})"
