"""Frozen records that are built at the speed of plain ones.

A frozen dataclass sets each field through ``object.__setattr__``, which takes several times as long as an assignment,
and a judged operation builds dozens of records.  Here a record is of a class that is not frozen while its fields are
assigned, and of its own from then on; it is frozen for everyone who ever sees it.  One of a subclass, which may have
room for more, is built as the dataclass builds it.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

_T = TypeVar("_T")


def quick(cls: type[_T]) -> type[_T]:
    """Return the frozen, slotted dataclass ``cls``, which is changed, with another ``__init__`` that does the same.

    For classes without a base and without ``__post_init__``.  Raises ``TypeError`` for any other.
    """
    record: Any = cls
    if cls.__bases__ != (object,) or hasattr(cls, "__post_init__") or "__slots__" not in vars(cls):
        raise TypeError(f"{cls.__name__} has a base, a __post_init__ or no slots")
    if not fields(record):
        return cls
    thawed = type(cls.__name__, (), {"__slots__": record.__slots__})
    known: dict[str, Any] = {
        "_set": object.__setattr__,
        "_thawed": thawed,
        "_frozen": cls,
        "_missing": MISSING,
    }
    parameters, assignments = ["self"], dict[str, str]()
    for one in fields(record):
        if one.kw_only or not one.init:
            raise TypeError(f"{cls.__name__}.{one.name} is no ordinary field")
        value = one.name
        if one.default_factory is not MISSING:
            made_by = "{}" if one.default_factory is dict else f"_make_{one.name}()"
            known[f"_make_{one.name}"] = one.default_factory
            parameters.append(f"{one.name}=_missing")
            value = f"{made_by} if {one.name} is _missing else {one.name}"
        elif one.default is not MISSING:
            known[f"_default_{one.name}"] = one.default
            parameters.append(f"{one.name}=_default_{one.name}")
        else:
            parameters.append(one.name)
        assignments[one.name] = value
    lines = [
        f"def __init__({', '.join(parameters)}):",
        "    if self.__class__ is not _frozen:",
        *(f'        _set(self, "{name}", {value})' for name, value in assignments.items()),
        "        return",
        '    _set(self, "__class__", _thawed)',
        *(f"    self.{name} = {value}" for name, value in assignments.items()),
        "    self.__class__ = _frozen",
    ]
    exec("\n".join(lines), known)  # noqa: S102 - of names that this module and the class give, as dataclasses does
    made = known["__init__"]
    made.__qualname__, made.__annotations__ = f"{cls.__qualname__}.__init__", record.__init__.__annotations__
    record.__init__ = made
    return cls
