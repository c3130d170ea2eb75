"""No vacuous green: what each quality gate is there to catch, planted, makes it fail.

The gates run over the real layout (links and all) under the real configuration, in a copy that holds little else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from import_rule import MAY_IMPORT
from tree import copy_tree, run_tool

FOLDERS = sorted(MAY_IMPORT)


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    return copy_tree(repository, tmp_path / "tree", only_packages=True)


def plant(tree: Path, folder: str, text: str) -> Path:
    path = tree / "src" / "kvcrucible" / folder / "planted.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_mypy_catches_a_type_error_in_every_folder(tree: Path) -> None:
    pytest.importorskip("mypy")
    clean = run_tool(["-m", "mypy"], tree)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    for folder in FOLDERS:
        plant(tree, folder, "def length() -> int:\n    return 'three'\n")
    broken = run_tool(["-m", "mypy"], tree)
    assert broken.returncode == 1
    for folder in FOLDERS:
        assert f"src/kvcrucible/{folder}/planted.py:2: error" in broken.stdout


def test_mypy_is_strict_in_every_folder(tree: Path) -> None:
    pytest.importorskip("mypy")
    for folder in FOLDERS:
        plant(tree, folder, "def length(text):\n    return len(text)\n")
    broken = run_tool(["-m", "mypy"], tree)
    assert broken.stdout.count("[no-untyped-def]") == len(FOLDERS)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("import engine", "TID251"),
        ("from contract.errors import Refusal", "TID251"),
        ("import pickle", "TID251"),
        ("import os", "F401"),
        ("def undocumented() -> None:\n    return None", "D103"),
    ],
)
def test_ruff_catches_what_is_banned(tree: Path, statement: str, code: str) -> None:
    pytest.importorskip("ruff")
    arguments = ["-m", "ruff", "check", "--no-cache", "--output-format=concise", "."]
    clean = run_tool(arguments, tree)
    assert clean.returncode == 0, clean.stdout
    for folder in FOLDERS:
        plant(tree, folder, f'"""Planted."""\n\n{statement}\n')
    broken = run_tool(arguments, tree)
    assert broken.returncode == 1
    for folder in FOLDERS:
        assert any(f"{folder}/planted.py" in line and code in line for line in broken.stdout.splitlines())


def test_ruff_bans_the_bare_name_of_every_folder(tree: Path) -> None:
    pytest.importorskip("ruff")
    plant(tree, "perf", "".join(f"import {folder}\n" for folder in FOLDERS))
    broken = run_tool(["-m", "ruff", "check", "--no-cache", "--output-format=concise", "."], tree)
    for folder in FOLDERS:
        assert f"`{folder}` is banned: Import kvcrucible.{folder}" in broken.stdout


def test_ruff_catches_an_unformatted_file(tree: Path) -> None:
    pytest.importorskip("ruff")
    arguments = ["-m", "ruff", "format", "--no-cache", "--check", "."]
    assert run_tool(arguments, tree).returncode == 0
    plant(tree, "engine", "x = {  'a':1 }\n")
    broken = run_tool(arguments, tree)
    assert broken.returncode == 1
    assert "engine/planted.py" in broken.stdout


def test_coverage_reports_a_line_that_never_ran_in_every_folder(tree: Path) -> None:
    pytest.importorskip("coverage")
    for folder in FOLDERS:
        plant(tree, folder, "def ran():\n    return 1\n\n\ndef never():\n    return 2\n")
    drive = tree / "drive.py"
    drive.write_text(
        "".join(
            f"from kvcrucible.{folder}.planted import ran as {folder}\n{folder}()\n" for folder in FOLDERS
        ),
        encoding="utf-8",
    )
    source = str(tree / "src")
    for arguments in (["run", "drive.py"], ["combine"], ["json", "-o", "coverage.json"]):
        done = run_tool(["-m", "coverage", *arguments], tree, PYTHONPATH=source)
        assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tree / "coverage.json").read_text(encoding="utf-8"))
    missing = {
        Path(name).parent.name: entry["missing_lines"]
        for name, entry in report["files"].items()
        if name.endswith("planted.py")
    }
    assert missing == {folder: [6] for folder in FOLDERS}


def test_pytest_refuses_an_unknown_marker_and_an_unhandled_warning(repository: Path, tmp_path: Path) -> None:
    shutil.copy2(repository / "pyproject.toml", tmp_path / "pyproject.toml")
    (tmp_path / "tests").mkdir()
    planted = tmp_path / "tests" / "test_planted.py"
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]

    planted.write_text("def test_it():\n    pass\n", encoding="utf-8")
    assert run_tool(arguments, tmp_path).returncode == 0

    planted.write_text("import pytest\n\n@pytest.mark.mispelt\ndef test_it():\n    pass\n", encoding="utf-8")
    assert "'mispelt' not found" in run_tool(arguments, tmp_path).stdout

    planted.write_text("import warnings\n\ndef test_it():\n    warnings.warn('old')\n", encoding="utf-8")
    warned = run_tool(arguments, tmp_path)
    assert warned.returncode == 1
    assert "UserWarning: old" in warned.stdout


@pytest.mark.parametrize("failing", ["setup", "lint", "wheel-check", "test", "fuzz"])
def test_continuous_integration_stops_at_the_first_command_that_fails(
    repository: Path, tmp_path: Path, failing: str
) -> None:
    bash = shutil.which("bash")
    if bash is None or not (repository / ".ci" / "run").exists():
        pytest.skip("needs bash and .ci/run")
    log = tmp_path / "log"
    make = tmp_path / "make"
    make.write_text(f'#!{bash}\necho "$1" >> "{log}"\n[[ $1 != {failing} ]] || exit 7\n', encoding="utf-8")
    make.chmod(0o755)
    launch = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run_tool(["-c", launch, bash, repository / ".ci" / "run"], tmp_path, PATH=path)
    assert done.returncode == 7
    commands = ["setup", "lint", "wheel-check", "test", "fuzz"]
    assert log.read_text().split() == commands[: commands.index(failing) + 1]


def test_continuous_integration_runs_every_command(repository: Path, tmp_path: Path) -> None:
    text = (repository / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    for target in ("setup", "lint", "wheel-check", "test", "fuzz"):
        assert re.search(rf" make {target}( |$)", text, re.MULTILINE)
        assert f"\n{target}:" in makefile
