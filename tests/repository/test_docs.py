"""What the documents name exists, and each way in which it could not is caught."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import doc_rules
import module_map
from tree import copy_tree


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    """Return a copy of code and documents in which something can be planted."""
    copy = copy_tree(repository, tmp_path / "tree", only_packages=False)
    for path in doc_rules.documents(repository):
        to = copy / path.relative_to(repository)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)
    return copy


def add(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_every_relative_link_leads_somewhere(repository: Path) -> None:
    assert len(doc_rules.documents(repository)) > 10
    assert list(doc_rules.broken_links(repository)) == []


@pytest.mark.parametrize("link", ["no/such.py", "README.md#no-such-heading", "#no-such-heading"])
def test_a_broken_link_is_caught(tree: Path, link: str) -> None:
    before = set(doc_rules.broken_links(tree))
    add(tree / "GLOSSARY.md", f"\nSee [this]({link}), [that](README.md#layout) and `[code](nowhere)`.\n")
    (found,) = set(doc_rules.broken_links(tree)) - before
    assert found.startswith(f"GLOSSARY.md: {link}: no such ")


def test_links_hold_in_a_source_archive_where_the_folders_stand_in_the_package(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    package = tmp_path / "src" / "kvcrucible" / "engine"
    package.mkdir(parents=True)
    (package / "pool.py").touch()
    (tmp_path / "README.md").write_text("[a](engine/pool.py)", encoding="utf-8")
    (tmp_path / "docs" / "a.md").write_text("[a](../engine/pool.py) [b](engine/pool.py)", encoding="utf-8")
    assert list(doc_rules.broken_links(tmp_path)) == ["docs/a.md: engine/pool.py: no such file"]


def test_decisions_are_numbered_once_and_named_only_where_they_exist(repository: Path) -> None:
    assert list(doc_rules.decision_problems(repository)) == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (
            "docs/decisions/0001-again.md",
            "# 0001: Again\n\nStatus: accepted.\n",
            "0001: 2 decisions of this number",
        ),
        (
            "docs/decisions/0998-other.md",
            "# 0997: Other\n\nStatus: accepted.\n",
            "0998-other.md: its heading",
        ),
        ("docs/decisions/0998-other.md", "# 0998: Other\n", "0998-other.md: no status"),
        ("docs/decisions/later.md", "# Later\n", "later.md: a decision is called"),
        (
            "engine/planted.py",
            '"""See decision 0999."""\n',
            "src/kvcrucible/engine/planted.py: decision 0999",
        ),
        (
            "changes/planted.added.md",
            "As in docs/decisions/0999.\n",
            "changes/planted.added.md: decision 0999",
        ),
    ],
)
def test_a_wrong_decision_number_is_caught(tree: Path, file: str, text: str, problem: str) -> None:
    path = tree / "src" / "kvcrucible" / file if file.endswith(".py") else tree / file
    path.write_text(text, encoding="utf-8")
    (found,) = doc_rules.decision_problems(tree)
    assert found.startswith(problem)


def test_the_index_of_decisions_lists_each_by_its_title(repository: Path) -> None:
    assert list(doc_rules.index_problems(repository)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "- [0005](0005",
            "[0005](0005",
            "0005-radix-tree-over-runs.md: not in the index as '0005: The prefix",
        ),
        ("- [0005](0005-", "- [0005](0006-", "0005-radix-tree-over-runs.md: not in the index as '0005: "),
        ("host arena places", "host arena puts", "0012-best-fit-on-the-host.md: not in the index as '0012: "),
    ],
)
def test_a_decision_that_the_index_does_not_have_is_caught(
    tree: Path, old: str, new: str, problem: str
) -> None:
    index = tree / "docs" / "decisions" / doc_rules.INDEX
    text = index.read_text(encoding="utf-8")
    assert old in text
    index.write_text(text.replace(old, new), encoding="utf-8")
    assert next(doc_rules.index_problems(tree)).startswith(problem)


def test_the_guide_to_adapters_asks_for_every_capability(repository: Path) -> None:
    from dataclasses import fields

    from kvcrucible.contract.capabilities import Capabilities

    guide = (repository / "docs" / "adapters.md").read_text(encoding="utf-8")
    asked = re.findall(r"^   \| `(\w+)` \|", guide, re.MULTILINE)
    assert sorted(asked) == sorted(field.name for field in fields(Capabilities) if field.name != "engine")


def test_every_page_says_for_whom_it_is_and_what_it_answers(repository: Path) -> None:
    assert len(list(doc_rules.selected(repository, doc_rules.PAGES))) >= 12
    assert list(doc_rules.pages_that_do_not_say(repository)) == []


@pytest.mark.parametrize(
    ("text", "silent"),
    [
        ("# A\n\n**For** all.\n**Answers** nothing.\n\n## B\n", False),
        ("# A\n\n**For** all.\n\n## B\n\n**Answers** too late.\n", True),
        ("# A\n\nText.\n", True),
    ],
)
def test_a_page_that_does_not_say_is_caught(tmp_path: Path, text: str, silent: bool) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(text, encoding="utf-8")
    assert list(doc_rules.pages_that_do_not_say(tmp_path)) == (["docs/a.md"] if silent else [])


def test_the_module_map_is_what_the_modules_say(repository: Path) -> None:
    page = (repository / module_map.PAGE).read_text(encoding="utf-8")
    assert page == module_map.module_map(repository), "python tests/repository/module_map.py --write"


def test_the_reading_order_of_the_engine_leaves_no_module_out(repository: Path) -> None:
    linked = set(re.findall(r"\]\(engine/(\w+\.py)\)", (repository / "ARCHITECTURE.md").read_text("utf-8")))
    there = {path.name for path in (repository / "src" / "kvcrucible" / "engine").glob("*.py")} - {
        "__init__.py"
    }
    assert len(there) > 25
    assert there - linked == set()


def test_a_module_that_the_map_does_not_have_is_caught(tree: Path) -> None:
    before = module_map.module_map(tree)
    planted = tree / "src" / "kvcrucible" / "engine" / "planted.py"
    planted.write_text('"""What is planted\nhere.  And more."""\n', encoding="utf-8")
    after = module_map.module_map(tree)
    assert set(after.splitlines()) - set(before.splitlines()) == {
        "- [planted.py](../engine/planted.py): What is planted here"
    }
    planted.write_text("X = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="without a docstring"):
        module_map.module_map(tree)


def test_every_cited_section_of_the_design_exists(repository: Path) -> None:
    from kvcrucible.contract.semantics import ROWS
    from kvcrucible.invariants.registry import INVARIANTS

    known = doc_rules.design_sections(repository)
    assert {"1", "4", "4.3", "4.14", "4.14.1", "4.14.16", "8"} <= known
    assert not {"4.15", "4.14.17", "9"} & known
    assert list(doc_rules.unknown_sections(repository)) == []
    sources = {entry.id: entry.source for entry in INVARIANTS.values()} | {
        row.name: row.source for row in ROWS
    }
    assert len(sources) > 50
    assert {name: source for name, source in sources.items() if set(source.split(", ")) - known} == {}


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("(DESIGN 4.15)", "4.15"),
        ("(DESIGN\n    4.14.17)", "4.14.17"),
        ("#: As DESIGN\n#: 9 says.", "9"),
        ("(DESIGN 4.3, 4.13, 4.99)", "4.99"),
        ("DESIGN 4.3 and 11", "11"),
        ("DESIGN 4.3. Then 99 pages, 98 rows, DESIGN 12.", "12"),
    ],
)
@pytest.mark.parametrize("file", ["src/kvcrucible/engine/planted.py", "docs/adapters.md"])
def test_a_section_that_the_design_does_not_have_is_caught(
    tree: Path, file: str, text: str, section: str
) -> None:
    path = tree / file
    path.write_text(text, encoding="utf-8")
    assert list(doc_rules.unknown_sections(tree)) == [f"{file}: DESIGN {section}"]


def test_the_glossary_defines_what_its_index_lists(repository: Path) -> None:
    assert list(doc_rules.glossary_problems((repository / "GLOSSARY.md").read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("index", "body", "problems"),
    [
        ("*page*, *pool*", "- **page**: p.\n- **pool**: q.", []),
        ("*page*, *copy-on-\nwrite*", "- **page**: p.", ["copy-on- write: in the index and not defined"]),
        ("*page*", "- **page**: p.\n- **pool**: q.", ["pool: defined and not in the index"]),
        ("*page*", "- **page**: p.\n- **page**: q.", ["page: twice"]),
        ("*page*, *page*", "- **page**: p.", ["page: twice"]),
        ("", "", ["the glossary has no index"]),
    ],
)
def test_a_gap_in_the_glossary_is_caught(index: str, body: str, problems: list[str]) -> None:
    text = f"# Glossary\n\n## Index\n\n{index}\n\n## Words\n\n{body}\n"
    assert list(doc_rules.glossary_problems(text)) == problems


def test_every_word_that_commands_count_by_is_in_the_glossary(repository: Path) -> None:
    from kvcrucible.contract.errors import RefusalKind
    from kvcrucible.contract.operations import AdmissionMode, TransferOutcome, WaitingKind
    from kvcrucible.fuzz.faults.coverage import Standing
    from kvcrucible.fuzz.faults.run import Verdict
    from kvcrucible.fuzz.mutants.verdicts import MutantVerdict

    text = (repository / "GLOSSARY.md").read_text(encoding="utf-8")
    said = {*re.findall(r"`([^`]+)`", text), *re.findall(r"\*\*([^*]+)\*\*", text)}
    printed = {
        word.value
        for kind in (
            RefusalKind,
            WaitingKind,
            AdmissionMode,
            TransferOutcome,
            Standing,
            Verdict,
            MutantVerdict,
        )
        for word in kind
    }
    assert printed - said == set()


def test_every_file_that_a_document_names_exists(repository: Path) -> None:
    assert list(doc_rules.missing_files(repository)) == []


@pytest.mark.parametrize("name", ["engine/no_such.py", "no_such/", "docs/decisions/0999-none.md"])
def test_a_file_that_does_not_exist_is_caught(tree: Path, name: str) -> None:
    before = set(doc_rules.missing_files(tree))
    add(tree / "ARCHITECTURE.md", f"\n`{name}` is not there, `engine/pool.py` and `engine/` are.\n")
    assert set(doc_rules.missing_files(tree)) - before == {f"ARCHITECTURE.md: {name}"}


def command_line() -> Any:
    """Return the command line as one click command; skips while one of its own groups is missing."""
    import typer.main

    from kvcrucible.cli.main import build_app

    try:
        app = build_app()
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("kvcrucible.cli."):
            raise
        pytest.skip(f"the command line is not complete: {missing}")
    return typer.main.get_command(app)


def test_every_command_that_a_document_names_exists(repository: Path) -> None:
    named = [
        (name, line)
        for name, text in doc_rules.selected(repository, doc_rules.ABOUT_COMMANDS)
        for line in doc_rules.commands(text)
    ]
    assert len(named) > 8
    command = command_line()
    problems = [(name, doc_rules.command_problem(line, command)) for name, line in named]
    assert [(name, problem) for name, problem in problems if problem] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("`kvcrucible invariants\nID --json`", None),
        ("`kvcrucible model fetch`", None),
        ("`kvcrucible.engine` and `pip install kvcrucible`", None),
        ("`kvcrucible measure`", "no command measure"),
        ("`kvcrucible model steal`", "no command steal"),
        ("```console\n$ kvcrucible fuzz --faster\n```", "fuzz has no option --faster"),
    ],
)
def test_a_command_that_does_not_exist_is_caught(text: str, problem: str | None) -> None:
    import typer
    import typer.main

    from kvcrucible.cli import fuzz, invariants, model

    app = typer.Typer()
    for group in (fuzz, invariants, model):
        group.register(app)
    command = typer.main.get_command(app)
    found = [doc_rules.command_problem(line, command) for line in doc_rules.commands(text)]
    assert [said.partition(": ")[2] for said in found if said] == ([problem] if problem else [])


def statements() -> list[str]:
    from kvcrucible.invariants.registry import INVARIANTS

    return [entry.statement for entry in INVARIANTS.values()]


def test_what_an_invariant_says_stands_in_the_catalogue_alone(repository: Path) -> None:
    assert len(statements()) > 20
    assert list(doc_rules.repeated_statements(repository, statements())) == []


def test_a_repeated_statement_is_caught(tree: Path) -> None:
    first = statements()[0]
    half = len(first.split()) // 2
    broken_in_two = " ".join(first.split()[:half]) + "\n" + " ".join(first.split()[half:])
    add(tree / "GLOSSARY.md", f"\n- `pool-conservation`: {broken_in_two}\n")
    (found,) = doc_rules.repeated_statements(tree, statements())
    assert found.startswith("GLOSSARY.md: ")


def test_the_engine_never_reads_the_semantics_table(repository: Path) -> None:
    assert list(doc_rules.engine_reads_the_table(repository)) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from kvcrucible.contract.semantics import ROWS",
        "from kvcrucible.contract import semantics",
        "from kvcrucible.contract.counters import Change",
    ],
)
def test_an_engine_that_reads_the_table_is_caught(tree: Path, statement: str) -> None:
    add(tree / "src" / "kvcrucible" / "engine" / "guards.py", f"\n{statement}\n")
    assert len(list(doc_rules.engine_reads_the_table(tree))) == 1


def test_what_draws_examples_never_looks_at_the_engine(repository: Path) -> None:
    assert list(doc_rules.drawing_looks_at_the_engine(repository)) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from kvcrucible.engine.engine import Engine",
        "import kvcrucible.fuzz.adapters.paged",
        "CAPACITY = lambda lock: lock.snapshot.pools",
        "ENGINE = lambda lock: lock.adapter.engine",
    ],
)
def test_a_draw_that_looks_at_the_engine_is_caught(tree: Path, statement: str) -> None:
    add(tree / "src" / "kvcrucible" / "fuzz" / "rules.py", f"\n{statement}\n")
    (found,) = doc_rules.drawing_looks_at_the_engine(tree)
    assert found.startswith("fuzz/rules.py:")
