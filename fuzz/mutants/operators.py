"""What is done to a piece of source: the operators of mutmut, and three that it lacks (decision 0029).

An operator takes one node of a concrete syntax tree and returns what may stand in its place.  mutmut's are used as a
library: its list of (kind of node, function) pairs, which no part of its runner needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst
from mutmut.mutation import mutators

#: Operators of mutmut that are used, each with our name for it.
_BORROWED: dict[str, str] = {
    "operator_number": "number",
    "operator_name": "constant",
    "operator_augmented_assignment": "augmented-assignment",
    "operator_remove_unary_ops": "unary-removed",
    "operator_arg_removal": "argument",
    "operator_keywords": "keyword",
    "operator_swap_op": "swapped-operator",
    "operator_match": "case-removed",
    "operator_if_exp": "ternary-forced",
}

#: Operators of mutmut that are not used, each with the reason.
NOT_USED: dict[str, str] = {
    "operator_assignment": "a value that became None fails where it is used, whoever judges",
    "operator_string": "the engine's texts are its messages and names of pools, which no campaign compares",
    "operator_dict_arguments": "the engine calls no dict(...)",
    "operator_symmetric_string_methods_swap": "the engine works on no strings",
    "operator_unsymmetrical_string_methods_swap": "the engine works on no strings",
    "operator_lambda": "a lambda that answers None is noticed wherever its answer is used; its body is mutated instead",
}

#: Arguments that assert something, as ``zip(…, strict=True)`` does: where it holds, so does nothing instead.
ASSERTING_ARGUMENTS = frozenset({"strict"})

_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def replacements(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name of the operator, ``node`` or a node below it, what may stand in the place of that)."""
    for kind, operator in mutators.mutation_operators:
        name = _BORROWED.get(operator.__name__)
        if name is not None and isinstance(node, kind):
            for other in operator(node):
                if name != "argument" or _optional(node, other):
                    yield name, node, other
    for name, ours in _OURS.items():
        for part, other in ours(node):
            yield name, part, other


def operator_names() -> list[str]:
    """Return the names of all operators, in order."""
    return sorted({*_BORROWED.values(), *_OURS})


def _optional(call: Any, other: Any) -> bool:
    """Say whether a call only left out an argument that it gave by its name.

    One given by its place is mostly needed, and one that became None is used as something else: what fails by itself
    any judge notices, and half of all mutants would be of this kind.
    """
    if len(other.args) == len(call.args):
        return False
    pairs = list(zip(call.args, other.args, strict=False))
    lost = next((mine for mine, others in pairs if mine is not others), call.args[-1])
    return lost.keyword is not None and lost.keyword.value not in ASSERTING_ARGUMENTS


def _condition(node: Any) -> Iterable[tuple[Any, Any]]:
    """Decide a condition beforehand: of an ``if``, of a filter in a comprehension; a loop may only be left out, since
    one that goes on for ever shows nothing.
    """
    if isinstance(node, cst.If | cst.CompIf):
        yield node.test, cst.Name("True")
        yield node.test, cst.Name("False")
    elif isinstance(node, cst.While):
        yield node.test, cst.Name("False")


def _deleted(node: Any) -> Iterable[tuple[Any, Any]]:
    """Leave out a statement that is there for its effect.

    What computes a local value is not: without it the next line fails.  ``return`` and ``raise`` are not either, since
    the condition before them is decided beforehand.
    """
    effect = (
        (isinstance(node, cst.Expr) and isinstance(node.value, cst.Call))
        or isinstance(node, cst.AugAssign | cst.Del)
        or (
            isinstance(node, cst.Assign)
            and any(isinstance(target.target, cst.Attribute | cst.Subscript) for target in node.targets)
        )
    )
    if effect:
        yield node, cst.Pass()


def _swapped_call(node: Any) -> Iterable[tuple[Any, Any]]:
    """Call the opposite: ``min`` for ``max``, ``any`` for ``all``."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in _SWAPPED_CALLS:
        yield node.func, cst.Name(_SWAPPED_CALLS[node.func.value])


_OURS: dict[str, Callable[[Any], Iterable[tuple[Any, Any]]]] = {
    "condition": _condition,
    "statement-deleted": _deleted,
    "swapped-call": _swapped_call,
}
