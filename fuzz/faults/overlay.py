"""Applies a change to the source of one module as it is imported; in a child process, before the module is there."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Protocol

from kvcrucible.contract.errors import CrucibleError


class SourceChange(Protocol):
    """A change of one module's source: a fault of the catalogue, or a mutant."""

    @property
    def id(self) -> str:
        """What messages call it."""

    @property
    def module(self) -> str:
        """Full name of the module."""

    def apply_to(self, source: str) -> str:
        """Return the module's source with the change in it."""


class _FaultyLoader(SourceFileLoader):
    """Compiles the changed source; cached bytecode of the real module is neither read nor written."""

    def __init__(self, fullname: str, path: str, fault: SourceChange) -> None:
        super().__init__(fullname, path)
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        source = self._fault.apply_to(self.get_data(self.path).decode("utf-8"))
        # Triton compiles kernels from the source that ``inspect`` finds, which would be the file's: without this entry
        # the fault would be planted and never run.  Without a modification time it is never checked against the file.
        linecache.cache[self.path] = (len(source), None, source.splitlines(keepends=True), self.path)
        # Statements keep their line numbers only up to the fault; a traceback names the real file all the same.
        code: CodeType = compile(source, self.path, "exec", dont_inherit=True)
        return code


class _FaultFinder(MetaPathFinder):
    """Finds the fault's module alone; everything else goes its usual way."""

    def __init__(self, fault: SourceChange) -> None:
        self.fault = fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.fault.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = _FaultyLoader(fullname, spec.loader.path, self.fault)
        return spec


def plant(fault: SourceChange) -> None:
    """Make this process import ``fault.module`` with the fault in it, for good.

    Raises ``CrucibleError`` where the module has been imported already, so that nothing half-changed is ever judged.
    """
    if fault.module in sys.modules:
        raise CrucibleError(f"{fault.module} was imported before fault {fault.id} could be planted")
    sys.meta_path.insert(0, _FaultFinder(fault))
