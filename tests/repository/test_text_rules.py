"""The rules over the repository's text hold, and what breaks them is caught."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from text_rules import file_relative_access, machine_paths, tracked_files
from tree import copy_tree


def test_data_files_are_read_through_importlib_resources_only(repository: Path) -> None:
    assert list(file_relative_access(repository)) == []


@pytest.mark.parametrize("text", ["HERE = __file__\n", "import kvcrucible\nHERE = kvcrucible.__file__\n"])
def test_a_path_derived_from_a_module_file_is_caught(repository: Path, tmp_path: Path, text: str) -> None:
    tree = copy_tree(repository, tmp_path / "tree", only_packages=True)
    (tree / "src" / "kvcrucible" / "perf" / "planted.py").write_text(text, encoding="utf-8")
    (found,) = file_relative_access(tree)
    assert found.startswith("kvcrucible/perf/planted.py:")


def test_no_tracked_file_names_a_path_of_one_machine(repository: Path) -> None:
    try:
        files = tracked_files(repository)
    except OSError as error:
        pytest.skip(f"not a git checkout: {error}")
    assert len(files) > 20
    assert [line for path in files for line in machine_paths(path)] == []


@pytest.mark.parametrize(
    "path", ["/" + "home/ada/src", "/" + "root/.cache", "/" + "Users/ada/x", "/" + "work/tree"]
)
def test_a_path_of_one_machine_is_caught(tmp_path: Path, path: str) -> None:
    planted = tmp_path / "notes.md"
    planted.write_text(
        f"fine: ../shared/data, https://example.org{path}\nsee {path} here\n", encoding="utf-8"
    )
    assert list(machine_paths(planted)) == [f"{planted}:2: {path}"]


def test_data_are_looked_for_in_one_place(repository: Path) -> None:
    """What a test needs and the repository has not, ``from_data`` finds by KVCRUCIBLE_DATA: no folder is guessed."""
    guess = re.compile(r"""shared["']?\s*/\s*["']?data""")
    for path in sorted((repository / "tests").rglob("*.py")):
        text = path.read_text("utf-8")
        if path.parent.name != "repository":
            assert guess.search(text) is None, path
            assert "KVCRUCIBLE_DATA" not in text or path.name == "conftest.py", path


def test_every_folder_is_linked_into_the_package(repository: Path) -> None:
    links = {path.name: path for path in (repository / "src" / "kvcrucible").iterdir() if path.is_dir()}
    for name in ("ci", "cli", "contract", "engine", "fuzz", "invariants", "perf", "reference", "reports"):
        assert (links[name] / "__init__.py").is_file()
        if (repository / name).exists():
            assert links[name].is_symlink()
            assert links[name].readlink() == Path("..", "..", name)
