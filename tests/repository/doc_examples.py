"""Rules over what a reader of the documents will paste: Python blocks run or stand in the code, command lines parse.

A block of Python says what it is after the word ``python``: ``run`` for a whole script, whose output the next block
shows if that is marked ``text output``; ``from=PATH`` for lines that stand in that file.  A command line is whole where
it stands in a block of its own, after ``$`` or indented; names within a sentence are the business of :mod:`doc_rules`.

Does not verify: what a command prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doc_rules import documents, exists
from tree import run_tool

_FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: A line that a reader copies: in a console block after the prompt, or indented by four spaces.
_TYPED = re.compile(r"^(?:\$ |    )(kvcrucible .*)$", re.MULTILINE)

#: What ends the part of a shell line that is ours.
_BEYOND = re.compile(r"\s(?:[|>;#]|&&)(?:\s|$)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a document: what stands after the backticks, and the text."""

    document: str
    line: int
    info: str
    text: str

    @property
    def where(self) -> str:
        """Name and line, as an editor takes them."""
        return f"{self.document}:{self.line}"


def blocks(root: Path) -> Iterator[Block]:
    """Yield every fenced block of every document, in order."""
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        for found in _FENCED.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(path.relative_to(root).as_posix(), line, found[1].strip(), found[2])


def scripts(root: Path) -> Iterator[tuple[Block, str | None]]:
    """Yield each script with the output that the document shows, None where it shows none."""
    everything = list(blocks(root))
    for at, block in enumerate(everything):
        if block.info == "python run":
            shown = everything[at + 1] if at + 1 < len(everything) else None
            told = shown is not None and shown.info == "text output" and shown.document == block.document
            yield block, shown.text if told and shown is not None else None


def script_problem(block: Block, shown: str | None, folder: Path, package: Path) -> str | None:
    """Run a script as a reader would, in an empty ``folder``; return what differs from what the document says."""
    script = folder / "pasted.py"
    script.write_text(block.text, encoding="utf-8")
    done = run_tool([script], folder, PYTHONPATH=str(package))
    if done.returncode:
        return f"{block.where}: status {done.returncode}: {done.stderr.strip()[-600:]}"
    if shown is not None and done.stdout != shown:
        return f"{block.where}: it prints\n{done.stdout}and the document shows\n{shown}"
    return None


def excerpt_problems(root: Path) -> Iterator[str]:
    """Yield each block of Python that is neither a script nor an excerpt, and each excerpt that is not in its file."""
    for block in blocks(root):
        language, _, rest = block.info.partition(" ")
        if language != "python" or rest == "run":
            continue
        if not rest.startswith("from="):
            yield f"{block.where}: neither `run` nor `from=PATH` after `python`"
            continue
        found = exists(root, root, rest.removeprefix("from="))
        if found is None:
            yield f"{block.where}: no file {rest.removeprefix('from=')}"
        elif _plain(block.text) not in _plain(found.read_text(encoding="utf-8")):
            yield f"{block.where}: does not stand in {rest.removeprefix('from=')}"


def _plain(text: str) -> str:
    """Return lines without their indentation, so that the body of a method is an excerpt."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def typed_commands(text: str) -> Iterator[str]:
    """Yield the arguments of each whole ``kvcrucible`` line, without what a shell does with its output."""
    for line in _TYPED.findall(text):
        yield _BEYOND.split(line)[0].removeprefix("kvcrucible ")


def parse_problem(line: str, command: Any) -> str | None:
    """Parse ``line`` as ``command`` would and run nothing; return what it would refuse, None where it would not."""
    arguments = shlex.split(line)
    while hasattr(command, "commands") and arguments and arguments[0] in command.commands:
        command = command.commands[arguments.pop(0)]
    if not hasattr(command, "commands"):
        try:
            command.make_context(command.name, arguments)
        except Exception as refused:
            if not hasattr(refused, "format_message"):
                raise
            return f"`kvcrucible {line}`: {refused.format_message()}"
    elif arguments and arguments[0] not in ("--help", "--version"):
        return f"`kvcrucible {line}`: {command.name} has no command {arguments[0]}"
    return None
