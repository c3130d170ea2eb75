"""JSON files: written whole or not at all, and read within limits, as what somebody else may have written.

A file is a regular file of at most a stated size.  A text is UTF-8, nested a few levels deep, and has no repeated keys
(of which readers keep different ones) and no number that is not finite; which form it has to have, a JSON Schema says.
Every refusal is an :class:`InputError` of one line: the name, what was found there, and the caller's ``remedy``.

Does not verify what the values mean.  Files that grow with use are read line by line (``perf/traces``,
``invariants/history``).
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcrucible.contract.errors import InputError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

#: Deepest nesting, the innermost values included; the forms that are read need seven levels.
MAX_DEPTH = 16

#: Characters that are shown of a key, a place or what is wrong with a value: all hold the file's own words.
_SHOWN_CHARACTERS = 300


def write_json(path: Path, plain: Mapping[str, Any], remedy: str) -> None:
    """Write ``plain`` to ``path``, whole or not at all, keys in order; folders are made and what is there is replaced.

    Raises :class:`InputError` where that cannot be, and ``ValueError`` for a number that is not finite.
    """
    text = json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n"
    beside = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); {remedy}") from None


def read_json(path: Path, limit_bytes: int, remedy: str) -> Any:
    """Return what the JSON file ``path`` of at most ``limit_bytes`` says; raises :class:`InputError`."""
    return parse_json(read_bounded(path, limit_bytes, remedy), str(path), remedy)


def read_bounded(path: Path, limit_bytes: int, remedy: str) -> str:
    """Return the text of the regular file ``path``; raises :class:`InputError` for none, a large one, or no UTF-8."""
    try:
        # Opened first and asked then, so that both are of one file; a pipe that nobody writes to is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{path}: not a regular file; {remedy}")
            with open(descriptor, "rb", closefd=False) as file:
                # What was read is counted: a file may grow meanwhile, and some tell no size.
                data = file.read(limit_bytes + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; {remedy}") from None
    if len(data) > limit_bytes:
        raise InputError(f"{path}: more than {limit_bytes:,} bytes, which is all that is read; {remedy}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; {remedy}") from None


def parse_json(text: str, name: str, remedy: str) -> Any:
    """Return what a JSON text says; raises :class:`InputError` for repeated keys, NaN, infinities, deep nesting."""
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)
    except RecursionError:
        raise InputError(f"{name}: nested deeper than {MAX_DEPTH}; {remedy}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: not JSON: {error}; {remedy}") from None
    except ValueError as error:
        raise InputError(f"{name}: {error}; {remedy}") from None
    require_plain(found, name, remedy)
    return found


def require_plain(value: Any, name: str, remedy: str) -> None:
    """Refuse deep nesting, and NaN and infinities: every comparison with a limit lets NaN pass."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            raise InputError(f"{name}: a number is not finite; {remedy}")
        level = [
            inner
            for outer in level
            for inner in (
                outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
            )
        ]
        if not level:
            return
    raise InputError(f"{name}: nested deeper than {MAX_DEPTH}; {remedy}")


def check_form(value: Any, package: str, schema: str, name: str, remedy: str) -> None:
    """Raise :class:`InputError`, which names the place, unless ``value`` has the form that a JSON Schema states.

    ``schema``: the file below the folder of ``package``, an import name, that has it.
    """
    error = next(_validator(package, schema).iter_errors(value), None)
    if error is not None:
        place = "/".join(str(part) for part in error.absolute_path) or "top"
        found = f"at {place[:_SHOWN_CHARACTERS]}: {error.message[:_SHOWN_CHARACTERS]}"
        raise InputError(f"{name}: {found}; {remedy}")


@cache
def _validator(package: str, schema: str) -> Draft202012Validator:
    # Here, because most commands, and the sampler's process above all, start without reading a file.
    from jsonschema import Draft202012Validator

    plain = json.loads(resources.files(package).joinpath(schema).read_text("utf-8"))
    Draft202012Validator.check_schema(plain)
    return Draft202012Validator(plain)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"key {repr(twice)[:_SHOWN_CHARACTERS]} stands twice in one object")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")
