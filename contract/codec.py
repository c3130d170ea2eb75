"""Operations as plain JSON-ready data and back: for histories, reproductions and other languages.

An operation is ``[name, {field: value}]``; nested works carry their name the same way, an identity and a span are
objects.
What comes in is judged by the operation's own type annotations; anything else is an ``InputError`` that says where it
is wrong.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.media import MAX_MEDIA, MAX_TOKEN_TYPE, TokenSpan
from kvcrucible.contract.operations import OPERATIONS, Append, Identity, Operation, Prefill, Work
from kvcrucible.contract.tokens import Tokens, canonical

_BY_NAME: dict[str, type] = {kind.__name__: kind for kind in OPERATIONS}
_WORKS: dict[str, type] = {"Prefill": Prefill, "Append": Append}

#: Largest magnitude of an integer in an operation: 64-bit signed, as other languages write it.
MAX_INTEGER = 2**63 - 1


def operation_to_plain(operation: Operation | Work) -> list[Any]:
    """Return ``[name, fields]``; fields that have their default value are left out."""
    values: dict[str, Any] = {}
    for field in fields(operation):
        value = getattr(operation, field.name)
        if field.default is not MISSING and value == field.default:
            continue
        values[field.name] = _to_plain(value)
    return [type(operation).__name__, values]


def operation_from_plain(plain: Any) -> Operation:
    """Rebuild an operation; raises ``InputError`` for what is none."""
    operation: Operation = _build(plain, _BY_NAME, "operation")
    return operation


def _to_plain(value: Any) -> Any:
    if isinstance(value, Identity):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, TokenSpan):
        return {
            field.name: getattr(value, field.name)
            for field in fields(value)
            if field.default is MISSING or getattr(value, field.name) != field.default
        }
    if isinstance(value, Prefill | Append):
        return operation_to_plain(value)
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return value


def _build(plain: Any, kinds: dict[str, type], what: str) -> Any:
    if not (isinstance(plain, list | tuple) and len(plain) == 2 and isinstance(plain[1], dict)):
        raise InputError(f"an {what} is [name, fields], found {plain!r:.80}")
    name, values = plain
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InputError(f"unknown {what} {name!r:.40}; known: {', '.join(sorted(kinds))}")
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(set(map(str, values)) - set(known))
    if unknown:
        raise InputError(f"{name} has no field {unknown[0]!r:.40}; it has {', '.join(known)}")
    missing = [
        field.name for field in known.values() if field.default is MISSING and field.name not in values
    ]
    if missing:
        raise InputError(f"{name} lacks its field {missing[0]!r}")
    return kind(**{key: _field(name, key, str(known[key].type), value) for key, value in values.items()})


def _field(name: str, key: str, annotation: str, value: Any) -> Any:
    where = f"{name}.{key}"
    match annotation:
        case "int":
            return _integer(where, value)
        case "int | None":
            return None if value is None else _integer(where, value)
        case "bool":
            if isinstance(value, bool):
                return value
        case "str | None":
            if value is None or isinstance(value, str):
                return value
        case "Tokens":
            return _tokens(where, value)
        case "Identity":
            if isinstance(value, dict):
                return _identity(where, value)
        case "tuple[TokenSpan, ...]":
            if isinstance(value, list | tuple):
                return tuple(_span(where, item) for item in value)
        case "tuple[Accepted, ...]":
            if isinstance(value, list | tuple):
                return tuple(_pair(where, item) for item in value)
        case "tuple[Work, ...]":
            if isinstance(value, list | tuple):
                return tuple(_build(item, _WORKS, "work") for item in value)
    raise InputError(f"{where} is {annotation}, found {value!r:.80}")


def _integer(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INTEGER:
        raise InputError(f"{where} is a 64-bit integer, found {value!r:.80}")
    return value


def _pair(where: str, value: Any) -> tuple[int, int]:
    if not (isinstance(value, list | tuple) and len(value) == 2):
        raise InputError(f"{where}: an entry is [sequence, tokens], found {value!r:.80}")
    sequence, tokens = (_integer(where, part) for part in value)
    return sequence, tokens


def _tokens(where: str, value: Any) -> Tokens:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} is a list of runs, found {value!r:.80}")
    runs = []
    for run in value:
        if not (isinstance(run, list | tuple) and len(run) == 3):
            raise InputError(f"{where}: a run is [source, start, length], found {run!r:.80}")
        source, start, length = (_integer(where, part) for part in run)
        if length < 0:
            raise InputError(f"{where}: a run's length is at least 0, found {length}")
        runs.append((source, start, length))
    return canonical(runs)


def _identity(where: str, value: dict[Any, Any]) -> Identity:
    kinds = {field.name: type(field.default) for field in fields(Identity)}
    for key, item in value.items():
        if key not in kinds:
            raise InputError(f"{where} has no field {key!r:.40}")
        if type(item) is not kinds[key]:
            raise InputError(f"{where}.{key} is {kinds[key].__name__}, found {item!r:.80}")
    return Identity(**value)


def _span(where: str, value: Any) -> TokenSpan:
    if not isinstance(value, dict) or not {"start", "length"} <= value.keys():
        raise InputError(f"{where}: a span is an object with start and length, found {value!r:.80}")
    most = {"token_type": MAX_TOKEN_TYPE, "media": MAX_MEDIA}
    for key, item in value.items():
        if key in ("start", "length"):
            _integer(f"{where}.{key}", item)
        elif key not in most:
            raise InputError(f"{where}: a span has no field {key!r:.40}")
        elif not isinstance(item, str) or len(item) > most[key]:
            raise InputError(f"{where}.{key} is text of at most {most[key]} characters, found {item!r:.80}")
    return TokenSpan(**value)
