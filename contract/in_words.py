"""Plain data as people read it: a constructor call without the fields that have their default value."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any


def in_words(value: Any) -> str:
    """Return operations, steps, settings and what they hold as text, fields as ``name=value``; ``repr`` for the rest.

    A field that has its default value is left out, so the text rebuilds the value where its classes are at hand.
    """
    if is_dataclass(value) and not isinstance(value, type):
        said = [
            f"{field.name}={in_words(getattr(value, field.name))}"
            for field in fields(value)
            if getattr(value, field.name) != _default(field)
        ]
        return f"{type(value).__name__}({', '.join(said)})"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        inside = ", ".join(map(in_words, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return repr(value)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
