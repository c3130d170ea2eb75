"""What a reader pastes out of the documents runs, and each way in which it could not is caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import doc_examples
from doc_examples import Block
from doc_rules import documents


@pytest.fixture
def command() -> Any:
    import typer.main

    from kvcrucible.cli.main import build_app

    return typer.main.get_command(build_app())


def test_every_script_runs_and_prints_what_the_document_shows(repository: Path, tmp_path: Path) -> None:
    found = list(doc_examples.scripts(repository))
    assert found
    for block, shown in found:
        assert doc_examples.script_problem(block, shown, tmp_path, repository / "src") is None


def test_every_other_block_of_python_stands_in_the_code(repository: Path) -> None:
    assert any(block.info.startswith("python from=") for block in doc_examples.blocks(repository))
    assert list(doc_examples.excerpt_problems(repository)) == []


def test_every_command_line_that_is_typed_parses(repository: Path, command: Any) -> None:
    lines = [
        (path.name, line)
        for path in documents(repository)
        for line in doc_examples.typed_commands(path.read_text(encoding="utf-8"))
    ]
    assert len(lines) >= 5
    problems = [(name, doc_examples.parse_problem(line, command)) for name, line in lines]
    assert [(name, problem) for name, problem in problems if problem] == []


@pytest.mark.parametrize(
    ("text", "shown", "problem"),
    [
        ("print(1)\n", "1\n", None),
        ("print(1)\n", None, None),
        ("print(1)\n", "2\n", "a.md:3: it prints\n1\nand the document shows\n2\n"),
        ("raise SystemExit(3)\n", None, "a.md:3: status 3: "),
        ("import kvcrucible.nothing\n", None, "a.md:3: status 1: "),
    ],
)
def test_a_script_that_does_not_do_what_is_shown_is_caught(
    repository: Path, tmp_path: Path, text: str, shown: str | None, problem: str | None
) -> None:
    block = Block("a.md", 3, "python run", text)
    found = doc_examples.script_problem(block, shown, tmp_path, repository / "src")
    assert found is None if problem is None else (found or "").startswith(problem)


@pytest.mark.parametrize(
    ("text", "scripts", "problems"),
    [
        ("```python run\nprint(1)\n```\n\nIt prints\n\n```text output\n1\n```\n", ["1\n"], []),
        ("```python run\nprint(1)\n```\n", [None], []),
        ("```python from=a.py\nx = 1\nif x:\n```\n", [], []),
        ("```python from=a.py\nx = 2\n```\n", [], ["README.md:1: does not stand in a.py"]),
        ("```python from=b.py\nx = 1\n```\n", [], ["README.md:1: no file b.py"]),
        ("a\n\n```python\nx = 1\n```\n", [], ["README.md:3: neither `run` nor `from=PATH` after `python`"]),
        ("```cpp\nint x;\n```\n", [], []),
    ],
)
def test_a_block_is_what_it_says(
    tmp_path: Path, text: str, scripts: list[str | None], problems: list[str]
) -> None:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    (tmp_path / "a.py").write_text("def f():\n    x = 1\n    if x:\n        pass\n", encoding="utf-8")
    assert [shown for _, shown in doc_examples.scripts(tmp_path)] == scripts
    assert list(doc_examples.excerpt_problems(tmp_path)) == problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```console\n$ kvcrucible fuzz --depth ledger --examples 20\n```\n", None),
        ("    kvcrucible invariants | head -3\n", None),
        ("    kvcrucible --version\n", None),
        ("    kvcrucible perf\n", None),
        ("in a sentence kvcrucible fuzz --wrong\n", None),
        ("    kvcrucible fuzz --examples many\n", "'--examples'"),
        ("    kvcrucible fuzz --faster\n", "--faster"),
        ("    kvcrucible fuzz --examples 0 > FILE\n", "'--examples'"),
        ("    kvcrucible doctor one two\n", "unexpected extra argument"),
        ("    kvcrucible check\n", "Missing argument"),
        ("    kvcrucible perf measure\n", "perf has no command measure"),
    ],
)
def test_a_line_that_the_command_refuses_is_caught(text: str, problem: str | None, command: Any) -> None:
    problems = [doc_examples.parse_problem(line, command) for line in doc_examples.typed_commands(text)]
    if problem is None:
        assert [found for found in problems if found] == []
    else:
        (found,) = problems
        assert problem in (found or "")
