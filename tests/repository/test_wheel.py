"""The source archive builds a wheel that holds the package whole and nothing else, and a stray name is caught."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tree import copy_tree, package_files, run_tool
from wheel_rules import violations

pytest.importorskip("setuptools", minversion="77")

BACKEND = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def build(tree: Path, kind: str, out: Path) -> Path:
    """Build ``kind`` (``sdist`` or ``wheel``) from ``tree`` with the installed setuptools and return the file."""
    out.mkdir(exist_ok=True)
    done = run_tool(["-W", "ignore", "-c", BACKEND, f"build_{kind}", out], tree)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.split()[-1]


@pytest.mark.slow
def test_wheel_from_the_sdist_holds_the_package_and_runs(repository: Path, tmp_path: Path) -> None:
    tree = copy_tree(repository, tmp_path / "tree", only_packages=False)
    sdist = build(tree, "sdist", tmp_path / "dist")
    with tarfile.open(sdist) as archive:
        assert not [m.name for m in archive.getmembers() if m.issym() or m.islnk()]
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = build(unpacked, "wheel", tmp_path / "dist")
    assert violations(wheel, package_files(repository)) == []

    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    where = run_tool(
        ["-c", "import kvcrucible.contract as c; print(c.__file__)"], tmp_path, PYTHONPATH=str(site)
    )
    assert Path(where.stdout.strip()).is_relative_to(site), where.stdout + where.stderr
    started = run_tool(["-m", "kvcrucible", "--help"], tmp_path, PYTHONPATH=str(site))
    assert started.returncode == 0, started.stderr
    assert "doctor" in started.stdout


@pytest.mark.slow
def test_a_stray_name_and_a_forgotten_data_file_are_caught(repository: Path, tmp_path: Path) -> None:
    tree = copy_tree(repository, tmp_path / "tree", only_packages=True)
    (tree / "src" / "stray").mkdir()
    (tree / "src" / "stray" / "__init__.py").touch()
    package = tree / "src" / "kvcrucible"
    (package / "contract" / "schemas").mkdir(exist_ok=True)
    (package / "contract" / "schemas" / "planted.json").write_text("{}", encoding="utf-8")
    (package / "contract" / "planted.forgotten").touch()
    found = violations(build(tree, "wheel", tmp_path / "dist"), package_files(tree))
    assert found == [
        "top-level names: ['kvcrucible', 'stray'], wanted only kvcrucible",
        "not in the wheel: kvcrucible/contract/planted.forgotten (see package-data in pyproject.toml)",
    ]
