"""Rules over the documents: what they name exists, and what the code says is not said again.

Verifies: links, decision numbers, sections of the design contract, the glossary's index, named files and commands,
invariants' statements, and the two import rules on which decisions 0007 and 0008 rest.  Does not verify: that a
sentence is true.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from import_rule import PACKAGE, imports, module_name
from tree import package_files

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
_DECISION_FILE = re.compile(r"(\d{4})-[a-z0-9-]+\.md")
_LISTED = re.compile(r"^- \[(\d{4})\]\(([^)]+)\): (.+)$", re.MULTILINE)
_DECISION_NAMED = re.compile(r"(?:decisions?[ \n]+|decided in |docs/decisions/)(\d{4})\b")
_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|md|yaml|toml|txt|json)|(?:[\w.-]+/)+")
_SECTION = r"\d+(?:\.\d+)*"
_CITED = re.compile(rf"\bDESIGN[\s#:]+({_SECTION}(?:(?:,| and)[\s#:]+{_SECTION})*)")
_DEFINED = re.compile(r"^- \*\*(.+?)\*\*:", re.MULTILINE)
_INDEXED = re.compile(r"(?<!\*)\*([^*]+)\*(?!\*)")

#: The list of decisions, in their folder.
INDEX = "README.md"

#: Documents whose inline code names files of this repository rather than of others or of a user's folder.
ABOUT_FILES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/decisions/*.md")

#: Documents whose commands a reader will type.
ABOUT_COMMANDS = ("*.md", "docs/*.md", "docs/*/*.md", "changes/*.md")

#: Pages that begin by saying for whom they are and what they answer.  Others have a form of their own: the README, the
#: changelog with its fragments, decisions.
PAGES = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/*/README.md",
    "changes/README.md",
    "docs/measurements/cpu-decode.md",
)

#: What draws examples, and what it may not look at (decision 0008): imports by prefix, attributes of the lock step.
DRAWING = ("rules", "driver", "draws", "machine")
NOT_FOR_DRAWING = (f"{PACKAGE}.engine", f"{PACKAGE}.fuzz.adapters")
ATTRIBUTES_NOT_FOR_DRAWING = frozenset({"adapter", "snapshot", "monitor"})


def documents(root: Path) -> list[Path]:
    """Return every Markdown file that people read: at the top, in ``docs`` and in ``changes``."""
    return sorted({*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "changes").rglob("*.md")})


def selected(root: Path, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of the documents that ``patterns`` name."""
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def exists(root: Path, base: Path, target: str) -> Path | None:
    """Return the file that ``target`` names from ``base``; in a source archive the folders stand in the package."""
    direct = (base / target).resolve()
    if direct.exists():
        return direct
    root = root.resolve()
    packaged = root / "src" / PACKAGE / direct.relative_to(root) if direct.is_relative_to(root) else direct
    return packaged if packaged.exists() else None


def broken_links(root: Path) -> Iterator[str]:
    """Yield each relative link that leads nowhere, and each to a heading that is not there."""
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        for link in _LINK.findall(_CODE.sub("", _FENCE.sub("", text))):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            found = exists(root, path.parent, target) if target else path
            where = f"{path.relative_to(root).as_posix()}: {link}"
            if found is None:
                yield f"{where}: no such file"
            elif anchor and anchor not in anchors(found.read_text(encoding="utf-8")):
                yield f"{where}: no such heading"


def anchors(text: str) -> set[str]:
    """Return the anchors of a Markdown text's headings."""
    headings = (re.sub(r"[`*]", "", heading).lower() for heading in _HEADING.findall(_FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def decision_problems(root: Path) -> Iterator[str]:
    """Yield what is wrong with the decisions' numbers, and each number that documents or code name in vain."""
    folder = root / "docs" / "decisions"
    numbers: Counter[str] = Counter()
    for path in sorted(folder.glob("*.md")):
        if path.name == INDEX:
            continue
        named = _DECISION_FILE.fullmatch(path.name)
        if named is None:
            yield f"{path.name}: a decision is called NNNN-a-few-words.md"
            continue
        numbers[named[1]] += 1
        text = path.read_text(encoding="utf-8")
        if not text.startswith(f"# {named[1]}: "):
            yield f"{path.name}: its heading does not begin with its number"
        if not re.search(r"^Status: [a-z]+", text, re.MULTILINE):
            yield f"{path.name}: no status"
    yield from (
        f"{number}: {count} decisions of this number" for number, count in numbers.items() if count > 1
    )
    for path in [*documents(root), *_code(root), root / "pyproject.toml"]:
        for number in _DECISION_NAMED.findall(path.read_text(encoding="utf-8")):
            if number not in numbers:
                yield f"{path.relative_to(root).as_posix()}: decision {number} does not exist"


def index_problems(root: Path) -> Iterator[str]:
    """Yield each decision that the index does not have by its title once, and each line of it that names none."""
    folder = root / "docs" / "decisions"
    listed = Counter(_LISTED.findall((folder / INDEX).read_text(encoding="utf-8")))
    due = {
        (path.name, path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "))
        for path in folder.glob("*.md")
        if path.name != INDEX
    }
    found = Counter({(file, f"{number}: {title}"): times for (number, file, title), times in listed.items()})
    yield from (f"{file}: not in the index as {title!r}" for file, title in sorted(due - found.keys()))
    yield from (f"{file}: no decision is called {title!r}" for file, title in sorted(found.keys() - due))
    yield from (f"{file}: {times} times in the index" for (file, _), times in found.items() if times > 1)


def _code(root: Path) -> Iterator[Path]:
    return (root / "src" / path for path in package_files(root) if path.suffix == ".py")


def design_sections(root: Path) -> set[str]:
    """Return the sections of the design contract: its numbered headings, and the points of a numbered list in one."""
    found: set[str] = set()
    current = ""
    for line in (root / "docs" / "DESIGN.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(rf"#+ ({_SECTION})\.? ", line):
            current = heading[1]
            found.add(current)
        elif point := re.match(r"(\d+)\. ", line):
            found.add(f"{current}.{point[1]}")
    return found


def unknown_sections(root: Path) -> Iterator[str]:
    """Yield each section of the design contract that documents or code cite and that it does not have."""
    known = design_sections(root)
    for path in [*documents(root), *_code(root)]:
        for cited in _CITED.findall(path.read_text(encoding="utf-8")):
            for section in re.findall(_SECTION, cited):
                if section not in known:
                    yield f"{path.relative_to(root).as_posix()}: DESIGN {section}"


def glossary_problems(text: str) -> Iterator[str]:
    """Yield each term that the index and the definitions do not have in common, and each that is there twice."""
    _, _, rest = text.partition("\n## Index\n")
    index, _, body = rest.partition("\n## ")
    indexed, defined = Counter(_terms(_INDEXED, index)), Counter(_terms(_DEFINED, body))
    if not indexed:
        yield "the glossary has no index"
    yield from (f"{term}: in the index and not defined" for term in indexed if term not in defined)
    yield from (f"{term}: defined and not in the index" for term in defined if term not in indexed)
    yield from (f"{term}: twice" for term, count in (indexed | defined).items() if count > 1)


def _terms(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    return (" ".join(term.split()) for term in pattern.findall(text))


def pages_that_do_not_say(root: Path) -> Iterator[str]:
    """Yield each page that does not say for whom it is and what it answers before its first section."""
    for name, text in selected(root, PAGES):
        opening = " ".join(text.partition("\n## ")[0].split())
        if not (re.search(r"\*\*For\*\* \w", opening) and re.search(r"\*\*Answers\*\* \w", opening)):
            yield name


def missing_files(root: Path) -> Iterator[str]:
    """Yield each file or folder that inline code names and that does not exist."""
    for name, text in selected(root, ABOUT_FILES):
        for code in _CODE.findall(_FENCE.sub("", text)):
            if _FILE.fullmatch(code) and exists(root, root, code) is None:
                yield f"{name}: {code}"


def commands(text: str) -> Iterator[str]:
    """Yield what follows ``kvcrucible`` in inline code and in console blocks."""
    inline = _CODE.findall(_FENCE.sub("", text))
    blocks = [line.removeprefix("$ ") for block in _FENCE.findall(text) for line in block.splitlines()]
    for code in (*inline, *blocks):
        if code.startswith("kvcrucible "):
            yield " ".join(code.split()).removeprefix("kvcrucible ")


def command_problem(line: str, command: Any) -> str | None:
    """Return what is wrong with ``line`` as arguments of ``command`` (a click command), None where nothing is."""
    for argument in shlex.split(line):
        children = getattr(command, "commands", {})
        if argument.startswith("--"):
            options = {
                option
                for parameter in command.params
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            if argument.partition("=")[0] not in options | {"--help"}:
                return f"`kvcrucible {line}`: {command.name} has no option {argument}"
        elif children:
            if argument not in children:
                return f"`kvcrucible {line}`: no command {argument}"
            command = children[argument]
    return None


def repeated_statements(root: Path, statements: Iterable[str]) -> Iterator[str]:
    """Yield each statement of the catalogue that a document repeats: it would go on standing there when it changes."""
    wanted = {" ".join(statement.split()).lower().rstrip(".") for statement in statements}
    for path in documents(root):
        text = " ".join(path.read_text(encoding="utf-8").replace("`", "").split()).lower()
        yield from (f"{path.relative_to(root).as_posix()}: {said}" for said in sorted(wanted) if said in text)


#: Modules of the contract that hold the semantics table: its refusals and its counter changes.
TABLE = ("semantics", "counters")


def engine_reads_the_table(root: Path) -> Iterator[str]:
    """Yield each module of the engine that imports the semantics table or its formulas (decision 0007)."""
    folder = root / "src" / PACKAGE
    for path in sorted((folder / "engine").rglob("*.py")):
        name = module_name(path, folder)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for found in imports(tree, name, is_package=path.name == "__init__.py"):
            if f"{found.target}.".startswith(tuple(f"{PACKAGE}.contract.{half}." for half in TABLE)):
                yield f"{name}:{found.line}: {found.target}"


def drawing_looks_at_the_engine(root: Path) -> Iterator[str]:
    """Yield each place at which what draws examples could learn something from the engine (decision 0008)."""
    folder = root / "src" / PACKAGE
    for module in DRAWING:
        path = folder / "fuzz" / f"{module}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for found in imports(tree, module_name(path, folder), is_package=False):
            if f"{found.target}.".startswith(tuple(f"{prefix}." for prefix in NOT_FOR_DRAWING)):
                yield f"fuzz/{module}.py:{found.line}: imports {found.target}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES_NOT_FOR_DRAWING:
                yield f"fuzz/{module}.py:{node.lineno}: looks at {node.attr}"
