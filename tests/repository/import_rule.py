"""The one-way rule of DESIGN 2 as a checker over the source text: ``python tests/repository/import_rule.py`` runs it.

Verifies: each folder imports only the folders below it (wherever the statement stands, inside a function too); the
kernels know neither pool nor address space; optional libraries are imported at module level only by the modules that
hold tensors; no folder is imported by its bare name.  Does not verify: imports computed at run time, and what a
library that is allowed brings in (the blocked start in ``test_import_rule.py`` does).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "kvcrucible"

_LOW = frozenset({"contract", "reference", "engine", "invariants"})

#: Folder -> the other folders that it may import (DESIGN 2).
MAY_IMPORT: dict[str, frozenset[str]] = {
    "contract": frozenset(),
    "reference": frozenset({"contract"}),
    "engine": frozenset({"contract"}),
    "invariants": frozenset({"contract"}),
    "fuzz": _LOW,
    "perf": _LOW,
    "ci": _LOW | {"fuzz", "perf"},
    "reports": frozenset({"contract", "perf"}),
    "cli": _LOW | {"fuzz", "perf", "ci", "reports"},
}

#: Modules that a prefix bars beyond its folder's row: the kernels see planes and table rows, never who owns them.
BARRED: dict[str, tuple[str, ...]] = {
    "kvcrucible.engine.kernels": (
        "kvcrucible.engine.pages",
        "kvcrucible.engine.pool",
        "kvcrucible.engine.space",
        "kvcrucible.engine.tables",
        "kvcrucible.engine.model",
    ),
}

#: Top-level names of libraries that only an extra installs.
OPTIONAL_LIBRARIES = frozenset(
    {
        "torch",
        "numpy",
        "scipy",
        "ruptures",
        "sqlalchemy",
        "psycopg",
        "triton",
        "pynvml",
        "gguf",
        "tokenizers",
        "ray",
        "jinja2",
        "safetensors",
        "libcst",
        "mutmut",
    }
)

#: Modules that may import those at module level, named by prefix; everything else imports them where it needs them.
TENSOR_MODULES = (
    "kvcrucible.engine.kernels",
    "kvcrucible.engine.model",
    "kvcrucible.engine.storage.planes",
    "kvcrucible.engine.storage.torch_storage",
    "kvcrucible.fuzz.adapters.torch_paged",
    "kvcrucible.fuzz.content",
    "kvcrucible.fuzz.kernels.checks",
    "kvcrucible.fuzz.kernels.stage",
    "kvcrucible.fuzz.mutants.generate",
    "kvcrucible.fuzz.mutants.operators",
    "kvcrucible.fuzz.payload",
    "kvcrucible.perf.calibration",
    "kvcrucible.perf.decode_bench",
    "kvcrucible.perf.generate",
    "kvcrucible.perf.compare",
    "kvcrucible.perf.history",
    "kvcrucible.perf.nvml.perturbation",
    "kvcrucible.perf.reference_cache",
    "kvcrucible.perf.selftest.gate_checks",
    "kvcrucible.perf.selftest.night_checks",
    "kvcrucible.perf.selftest.run",
    "kvcrucible.perf.simulator.nights",
    "kvcrucible.perf.simulator.noise",
    "kvcrucible.perf.simulator.runs",
    "kvcrucible.perf.statistics.blocks",
    "kvcrucible.perf.statistics.change_points",
    "kvcrucible.perf.statistics.cross_check",
    "kvcrucible.perf.statistics.gate",
    "kvcrucible.perf.statistics.intervals",
    "kvcrucible.perf.statistics.looks",
    "kvcrucible.perf.statistics.nightly",
    "kvcrucible.perf.statistics.noise_floor",
    "kvcrucible.perf.statistics.significance",
    "kvcrucible.reference.attention",
    "kvcrucible.reference.codecs",
    "kvcrucible.reference.contiguous",
    "kvcrucible.reference.exact",
    "kvcrucible.reference.formats",
    "kvcrucible.reference.rounding",
)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, as written at ``line`` of the module that imports it."""

    target: str
    line: int
    at_module_level: bool


def module_name(path: Path, package_root: Path) -> str:
    """Return the dotted import name of ``path``, which lies under ``package_root`` (the folder ``kvcrucible``)."""
    parts = (PACKAGE, *path.relative_to(package_root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module, name: str, *, is_package: bool) -> Iterator[Import]:
    """Yield every import of a module called ``name``, relative ones resolved and ``import_module("...")`` included."""
    late = {id(inner) for outer in ast.walk(tree) if _runs_later(outer) for inner in _deferred(outer)}
    for node in ast.walk(tree):
        at_module_level = id(node) not in late
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_module_level)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(node, name, is_package=is_package)
            for alias in node.names:
                # `from kvcrucible import engine` imports a folder; `from x.y import z` may name a module or an object,
                # and both readings start with the same folder.
                yield Import(f"{base}.{alias.name}", node.lineno, at_module_level)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(argument.value, node.lineno, at_module_level)


def violations(package_root: Path) -> list[str]:
    """Return one line for each broken rule under ``package_root``, an empty list where the rule holds.

    Raises ``ValueError`` where nothing was there to check: a rule that saw no file has not been kept.
    """
    found: list[str] = []
    folders_seen: set[str] = set()
    for folder in sorted(MAY_IMPORT):
        for path in sorted((package_root / folder).rglob("*.py")):
            folders_seen.add(folder)
            found.extend(_file_violations(path, package_root, folder))
    if folders_seen != MAY_IMPORT.keys():
        raise ValueError(f"no Python file in {sorted(MAY_IMPORT.keys() - folders_seen)} under {package_root}")
    return found


def _file_violations(path: Path, package_root: Path, folder: str) -> Iterator[str]:
    name = module_name(path, package_root)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for found in imports(tree, name, is_package=path.name == "__init__.py"):
        reason = _reason(name, folder, found)
        if reason:
            yield f"{folder}/{path.relative_to(package_root / folder).as_posix()}:{found.line}: {reason}"


def _reason(name: str, folder: str, found: Import) -> str | None:
    top, *rest = found.target.split(".")
    if top in MAY_IMPORT:
        return f"imports the bare name {top}, which exists only inside a checkout"
    if top in OPTIONAL_LIBRARIES and found.at_module_level and not is_tensor_module(name):
        return f"imports {top} at module level, which only tensor modules may"
    if top != PACKAGE or not rest:
        return None
    for prefix, barred in BARRED.items():
        if _under(name, (prefix,)) and _under(found.target, barred):
            return f"{prefix} may not know {found.target}"
    other = rest[0]
    if other in MAY_IMPORT and other != folder and other not in MAY_IMPORT[folder]:
        return f"{folder} may not import {other}"
    return None


def is_tensor_module(name: str) -> bool:
    """Return whether the module ``name`` may import an optional library at module level."""
    return _under(name, TENSOR_MODULES)


def _under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def _resolve(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    keep = len(parts) - node.level + int(is_package)
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def _runs_later(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(node)


def _is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _deferred(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what does not run when the module is imported; the other branch of ``if TYPE_CHECKING`` does."""
    body = node.body if isinstance(node, ast.If) else list(ast.iter_child_nodes(node))
    for part in body:
        yield from ast.walk(part)


def _is_import_call(node: ast.Call) -> bool:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in {"import_module", "__import__"} and bool(node.args)


def main() -> int:
    """Print what breaks the rule in this checkout; return 1 if anything does."""
    found = violations(Path(__file__).resolve().parents[2] / "src" / PACKAGE)
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
