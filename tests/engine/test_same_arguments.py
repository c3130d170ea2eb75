"""An operation called by hand is the contract's operation: the same arguments, the same defaults."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields

import pytest

from kvcrucible.contract.operations import OPERATIONS
from kvcrucible.engine.engine import Engine


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_a_method_has_the_arguments_and_defaults_of_its_operation(kind: type) -> None:
    """Whatever runs operations gives every argument, so that nobody else sees what a method supposes by itself."""
    method = getattr(Engine, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower())
    _, *taken = inspect.signature(method).parameters.values()
    supposed = [(one.name, MISSING if one.default is one.empty else one.default) for one in taken]
    assert supposed == [(one.name, one.default) for one in fields(kind)]
