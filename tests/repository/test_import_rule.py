"""The import rule holds, and each way of breaking it is caught."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import import_rule
from tree import copy_tree, package_modules, run_tool

#: Runs in a child: imports modules while optional libraries cannot be found, and tells which of them came in anyway.
START = """
import importlib, json, sys

libraries, blocked, modules = json.loads(sys.argv[1])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in libraries:
            raise ModuleNotFoundError(f"No module named {name!r} (made absent)", name=name)

if blocked:
    sys.meta_path.insert(0, Absent())
for module in modules:
    importlib.import_module(module)
if "kvcrucible.cli.main" in modules:
    sys.modules["kvcrucible.cli.main"].build_app()
print(json.dumps(sorted(set(libraries) & set(sys.modules))))
"""


def start(repository: Path, modules: list[str], *, blocked: bool) -> tuple[int, str, str]:
    """Import ``modules`` in a child process and return its exit status, output and error output."""
    asked = json.dumps([sorted(import_rule.OPTIONAL_LIBRARIES), blocked, modules])
    done = run_tool(["-c", START, asked], repository, PYTHONPATH=str(repository / "src"))
    return done.returncode, done.stdout, done.stderr


def control_plane(repository: Path) -> list[str]:
    return [
        name
        for name in package_modules(repository)
        if not import_rule.is_tensor_module(name) and not name.endswith("__main__")
    ]


def test_the_tree_keeps_the_rule(repository: Path) -> None:
    assert import_rule.violations(repository / "src" / "kvcrucible") == []


@pytest.mark.parametrize(
    ("place", "statement", "reason"),
    [
        ("contract", "from kvcrucible.engine import pool", "contract may not import engine"),
        ("contract", "from kvcrucible import reference", "contract may not import reference"),
        ("reference", "import kvcrucible.engine.pool", "reference may not import engine"),
        ("engine", "def late():\n    from kvcrucible.reference import x", "engine may not import reference"),
        ("engine", "from ..reference import cache", "engine may not import reference"),
        (
            "engine",
            "import importlib\nimportlib.import_module('kvcrucible.fuzz')",
            "engine may not import fuzz",
        ),
        ("invariants", "from kvcrucible.engine.pool import Pool", "invariants may not import engine"),
        ("perf", "import kvcrucible.fuzz", "perf may not import fuzz"),
        ("reports", "from kvcrucible.engine import pool", "reports may not import engine"),
        ("fuzz", "from kvcrucible.cli import main", "fuzz may not import cli"),
        ("ci", "import kvcrucible.reports", "ci may not import reports"),
        ("engine/kernels", "from kvcrucible.engine.pool import Pool", "may not know kvcrucible.engine.pool"),
        ("engine/kernels", "from kvcrucible.engine import space", "may not know kvcrucible.engine.space"),
        ("cli", "import engine.pool", "bare name engine"),
        ("contract", "import torch", "imports torch at module level"),
        (
            "cli",
            "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
            "imports numpy at module level",
        ),
    ],
)
def test_each_broken_rule_is_caught(
    repository: Path, tmp_path: Path, place: str, statement: str, reason: str
) -> None:
    tree = copy_tree(repository, tmp_path / "tree", only_packages=True)
    package = tree / "src" / "kvcrucible"
    assert import_rule.violations(package) == []
    (package / place / "planted.py").write_text(statement + "\n", encoding="utf-8")
    found = import_rule.violations(package)
    assert len(found) == 1
    assert found[0].startswith(f"{place}/planted.py:")
    assert reason in found[0]


def test_what_the_rule_allows_is_not_reported(repository: Path, tmp_path: Path) -> None:
    tree = copy_tree(repository, tmp_path / "tree", only_packages=True)
    package = tree / "src" / "kvcrucible"
    (package / "engine" / "kernels" / "planted.py").write_text("import torch\n", encoding="utf-8")
    (package / "fuzz" / "planted.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from kvcrucible import __version__, contract\n"
        "from kvcrucible.engine.pool import Pool\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "def late():\n    import torch\n",
        encoding="utf-8",
    )
    assert import_rule.violations(package) == []


def test_the_other_branch_of_type_checking_runs_at_import() -> None:
    tree = ast.parse("if TYPE_CHECKING:\n    import torch\nelse:\n    import numpy\n")
    levels = {i.target: i.at_module_level for i in import_rule.imports(tree, "x", is_package=False)}
    assert levels == {"torch": False, "numpy": True}


def test_every_listed_tensor_module_exists_and_needs_its_place(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = import_rule.TENSOR_MODULES
    monkeypatch.setattr(import_rule, "TENSOR_MODULES", ())
    found = import_rule.violations(repository / "src" / "kvcrucible")
    places = [name.removeprefix("kvcrucible.").replace(".", "/") for name in listed]
    idle = [
        place for place in places if not any(line.startswith((f"{place}.py:", f"{place}/")) for line in found)
    ]
    assert idle == []


def test_nothing_to_check_is_an_error_not_a_pass(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Python file"):
        import_rule.violations(tmp_path)


def test_everything_but_tensor_modules_imports_where_optional_libraries_are_absent(repository: Path) -> None:
    modules = control_plane(repository)
    assert len(modules) > 20
    status, output, errors = start(repository, modules, blocked=True)
    assert status == 0, errors
    assert json.loads(output) == []


def test_a_module_that_needs_torch_fails_the_blocked_start(repository: Path) -> None:
    status, _, errors = start(repository, ["kvcrucible.engine.kernels.api"], blocked=True)
    assert status == 1
    assert "made absent" in errors


def test_command_line_starts_without_loading_an_optional_library(repository: Path) -> None:
    status, output, errors = start(repository, ["kvcrucible.cli.main"], blocked=False)
    assert status == 0, errors
    assert json.loads(output) == []
