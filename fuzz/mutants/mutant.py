"""A mutant: one small change of one module of the engine, as plain data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kvcrucible.fuzz.mutants.subjects import ENGINE

#: Characters of the digest in a mutant's id.
_DIGEST_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module.

    ``function``: qualified name of the innermost function or class around it, ``<module>`` outside of any.  ``line``
    counts from 1.  ``before``, ``after``: the lines that differ, without what they are indented by.  ``nth``: how many
    mutants of the module before it are the same in all of this.  ``start``, ``stop``, ``text``: ``text`` stands for the
    characters from ``start`` to ``stop`` of the source.
    """

    module: str
    function: str
    operator: str
    line: int
    before: str
    after: str
    nth: int
    start: int
    stop: int
    text: str

    @property
    def id(self) -> str:
        """Name it by what it changes: the same where lines have moved and nothing else."""
        what = "\0".join((self.module, self.function, self.operator, self.before, self.after, str(self.nth)))
        digest = hashlib.sha256(what.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        return f"{self.module.removeprefix(f'{ENGINE}.')}:{self.function}:{digest}"

    def apply_to(self, source: str) -> str:
        """Return the source with the change in it."""
        return source[: self.start] + self.text + source[self.stop :]
