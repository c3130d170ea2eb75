"""YAML as plain data: without objects, aliases (a few lines of which can stand for gigabytes) and repeated keys."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.nodes import MappingNode

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import require_plain


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


def parse_yaml(text: str, name: str, remedy: str) -> Any:
    """Return what a YAML text says; raises :class:`InputError` for what JSON could not say as well."""
    try:
        # S506 is about loaders that build objects: this one is the safe loader with less.
        found = yaml.load(text, Loader=_StrictLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {' '.join(str(error).split())}; {remedy}") from None
    require_plain(found, name, remedy)
    return found
