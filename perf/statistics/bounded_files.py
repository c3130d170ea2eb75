"""JSON and YAML files that somebody else may have written, read within limits.

A file is a regular file of at most a stated size, UTF-8, without aliases (a few lines of which can stand for gigabytes)
or repeated keys (of which readers keep different ones), and it has the form that a JSON Schema says.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Hashable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from yaml.nodes import MappingNode

from kvcrucible.contract.errors import InputError

#: Largest file of settings or certificates, in bytes: a thousand times what they need would still fit.
MAX_FILE_BYTES = 1 << 20

#: Deepest nesting; the forms read here need four levels.
MAX_DEPTH = 16


def read_bounded(path: Path, limit_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of the regular file ``path``; raises :class:`InputError` for none, a large one, or no UTF-8."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: not a regular file")
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if len(data) > limit_bytes:
        raise InputError(f"{path}: more than {limit_bytes:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None


def parse_json(text: str, name: str) -> Any:
    """Return what a JSON text says; raises :class:`InputError` for repeated keys, NaN, infinities, deep nesting."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON number")

    try:
        found = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: {error}") from None
    _check_plain(found, name)
    return found


class _StrictLoader(yaml.SafeLoader):
    """Plain YAML without aliases and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read here")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if any(key in keys[:place] for place, key in enumerate(keys)):
            raise yaml.YAMLError(f"a key stands twice, near line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, name: str) -> Any:
    """Return what a YAML text says; raises :class:`InputError` for anything but plain data."""
    try:
        # S506 is about loaders that build objects: this one is the safe loader with less.
        found = yaml.load(text, Loader=_StrictLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {' '.join(str(error).split())}") from None
    _check_plain(found, name)
    return found


def check_form(value: Any, schema: str, name: str) -> None:
    """Raise :class:`InputError`, which names the place, unless ``value`` has the form that ``schema`` states."""
    error = next(_validator(schema).iter_errors(value), None)
    if error is not None:
        place = "/".join(str(part) for part in error.absolute_path) or "top"
        raise InputError(f"{name}: at {place}: {error.message[:300]}")


@cache
def _validator(schema: str) -> Draft202012Validator:
    text = (
        resources.files("kvcrucible.perf.statistics")
        .joinpath(f"schemas/{schema}.schema.json")
        .read_text("utf-8")
    )
    plain = json.loads(text)
    Draft202012Validator.check_schema(plain)
    return Draft202012Validator(plain)


def _check_plain(value: Any, name: str) -> None:
    """Refuse deep nesting, and NaN and infinities: every comparison with a limit lets NaN pass."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            raise InputError(f"{name}: a number is not finite")
        level = [
            inner
            for outer in level
            for inner in (
                outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
            )
        ]
        if not level:
            return
    raise InputError(f"{name}: nested deeper than {MAX_DEPTH}")
