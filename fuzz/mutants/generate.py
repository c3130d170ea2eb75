"""Makes the mutants of a module: one change of its source each, known by what is changed and not by its line.

Left out, because a change there cannot be told from the engine as it is, or only in words: docstrings, annotations and
names of types, decorators, imports, what stands under ``TYPE_CHECKING``, ``assert`` and ``strict=`` (where they hold,
weaker ones hold as well), what is said in a refusal or returned as a text, and statements that count exact work, which
campaigns do not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from types import CodeType
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider

from kvcrucible.contract import errors
from kvcrucible.fuzz.faults.catalogue import source_of
from kvcrucible.fuzz.mutants.mutant import Mutant
from kvcrucible.fuzz.mutants.operators import ASSERTING_ARGUMENTS, replacements

#: Calls of these say something in words: the refusals and errors of the contract.
_IN_WORDS = frozenset(
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.CrucibleError)
)

#: Names by which the engine's parts know its exact counts.
_WORK = frozenset({"work", "_work"})

#: Assigned at module or class level for others to read, never by the engine.
_DECLARATIONS = frozenset({"__all__", "__slots__"})


@cache
def mutants_of(module: str) -> tuple[Mutant, ...]:
    """Return every mutant of a module by position.

    None compiles to the same instructions as the module itself or as one before it: nothing could tell those apart.
    """
    return tuple(mutants_in(source_of(module), module))


def mutants_in(source: str, module: str) -> Iterator[Mutant]:
    """Yield every mutant of a source, as for :func:`mutants_of`."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    places = wrapper.resolve(WhitespaceInclusivePositionProvider)
    tree, begins = wrapper.module, [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]

    def span_of(node: Any) -> tuple[int, int]:
        start, end = places[node].start, places[node].end
        return begins[start.line - 1] + start.column, begins[end.line - 1] + end.column

    seen: dict[tuple[int, int], set[tuple[Any, ...]]] = {}
    times: Counter[tuple[str, str, str, str]] = Counter()
    for at in _walk(tree, _At((), tree)):
        # What is compiled to see whether anything changes: the function around it and not the whole module.
        unit = (0, len(source)) if at.unit is tree else span_of(at.unit)
        if unit not in seen:
            seen[unit] = {_instructions(source[slice(*unit)]) or ()}
        for operator, part, other in replacements(at.node):
            if isinstance(part, cst.BaseCompoundStatement):
                # Its lines are indented by what stands around it, so the whole is written anew.
                start, stop, text = 0, len(source), tree.deep_replace(part, other).code
            else:
                (start, stop), text = span_of(part), tree.code_for_node(other)
            changed = source[:start] + text + source[stop:]
            instructions = _instructions(changed[unit[0] : unit[1] + len(changed) - len(source)])
            if instructions is None or instructions in seen[unit]:
                continue
            seen[unit].add(instructions)
            line, before, after = _difference(source, changed)
            function = ".".join(at.scope) or "<module>"
            key = (function, operator, before, after)
            yield Mutant(module, function, operator, line, before, after, times[key], start, stop, text)
            times[key] += 1


def _instructions(source: str) -> tuple[Any, ...] | None:
    """Return what a source compiles to, without its lines and columns; None where it does not compile."""
    try:
        # A method is indented; below a condition that is always true it may be.
        whole = f"if True:\n{source}" if source.lstrip("\n")[:1].isspace() else source
        return _of_code(compile(whole, "", "exec", dont_inherit=True))
    except SyntaxError:
        return None


def _of_code(code: CodeType) -> tuple[Any, ...]:
    # 1, 1.0 and True are equal, so a constant is told by its type and text.
    constants = [
        _of_code(one) if isinstance(one, CodeType) else (type(one), repr(one)) for one in code.co_consts
    ]
    return (
        code.co_code,
        tuple(constants),
        code.co_names,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
    )


@dataclass(frozen=True, slots=True)
class _At:
    """Where a walk is: a node, the names of functions and classes around it, the outermost function around it, or the
    module.
    """

    scope: tuple[str, ...]
    node: Any
    unit: Any = None


def _walk(tree: Any, at: _At) -> Iterator[_At]:
    """Yield each place below ``at`` at which something may be changed."""
    node, scope = at.node, at.scope
    unit = tree if at.unit is None else at.unit
    if _left_out(node, scope):
        return
    yield _At(scope, node, unit)
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        scope = (*scope, node.name.value)
        unit = node if unit is tree and isinstance(node, cst.FunctionDef) else unit
    if not isinstance(node, cst.Raise) and not _speaks(node):
        for child in node.children:
            yield from _walk(tree, _At(scope, child, unit))


def _left_out(node: Any, scope: tuple[str, ...]) -> bool:
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Assert):
        return True
    if isinstance(node, cst.Arg):
        return node.keyword is not None and node.keyword.value in ASSERTING_ARGUMENTS
    if isinstance(node, cst.FunctionDef):
        return _answers_in_words(node)
    if isinstance(node, cst.If):
        return isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"
    if isinstance(node, cst.AugAssign):
        return _counts_work(node.target)
    if isinstance(node, cst.Assign):
        names = {target.target.value for target in node.targets if isinstance(target.target, cst.Name)}
        return bool(names & _DECLARATIONS) or (not scope and _is_type(node.value))
    return False


def _answers_in_words(function: Any) -> bool:
    """Say whether a function returns a text, which the engine has for messages alone."""
    returns = function.returns
    return (
        returns is not None and isinstance(returns.annotation, cst.Name) and returns.annotation.value == "str"
    )


def _counts_work(target: Any) -> bool:
    return isinstance(target, cst.Attribute) and (
        (isinstance(target.value, cst.Attribute) and target.value.attr.value in _WORK)
        or (isinstance(target.value, cst.Name) and target.value.value in _WORK)
    )


def _is_type(value: Any) -> bool:
    """Say whether a value of module level is a name for a type, which nothing reads as it runs."""
    named = isinstance(value, cst.Call) and isinstance(value.func, cst.Name)
    return isinstance(value, cst.Subscript) or (named and value.func.value in {"NewType", "TypeVar"})


def _speaks(node: Any) -> bool:
    """Say whether a call makes a refusal or an error of the contract: its arguments are words."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in _IN_WORDS


def _difference(source: str, changed: str) -> tuple[int, str, str]:
    """Return the first line that differs, counted from 1, and the lines that differ of both, stripped."""
    # Within brackets the library indents anew, which is no difference.
    old, new = ([line.strip() for line in text.splitlines()] for text in (source, changed))
    first = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    return first + 1, "\n".join(old[first : len(old) - last]), "\n".join(new[first : len(new) - last])
