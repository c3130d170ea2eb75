"""A record that is built quickly is the record that the dataclass would have built, and as frozen."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, replace
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from pkgutil import walk_packages

import pytest

from kvcrucible import contract, invariants, reference
from kvcrucible.contract import snapshot
from kvcrucible.contract.quick import quick


@dataclass(frozen=True, slots=True)
class Plain:
    first: int
    second: str = "two"
    entries: dict[int, str] = field(default_factory=dict)
    more: list[int] = field(default_factory=lambda: [7])


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    first: int
    second: str = "two"
    entries: dict[int, str] = field(default_factory=dict)
    more: list[int] = field(default_factory=lambda: [7])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((1,), {}),
        ((1, "b"), {}),
        ((), {"first": 3, "more": [1]}),
        ((1,), {"entries": {1: "a"}}),
        ((None, None), {}),
    ],
)
def test_arguments_mean_what_they_mean_to_the_dataclass(given, named):
    plain, made = Plain(*given, **named), Quick(*given, **named)
    assert type(made) is Quick
    assert [getattr(made, one.name) for one in fields(Quick)] == [
        getattr(plain, one.name) for one in fields(Plain)
    ]
    assert repr(made).replace("Quick", "Plain") == repr(plain)


def test_no_two_share_what_a_factory_makes():
    assert Quick(1).entries is not Quick(1).entries
    assert Quick(1).more is not Quick(1).more


@pytest.mark.parametrize("wrong", [{}, {"first": 1, "third": 2}])
def test_arguments_that_are_missing_or_unknown_are_refused(wrong):
    with pytest.raises(TypeError):
        Quick(**wrong)


def test_it_is_frozen_and_has_no_room_for_more():
    made = Quick(1)
    with pytest.raises(FrozenInstanceError):
        made.first = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del made.first
    assert not hasattr(made, "__dict__")


def test_it_is_copied_replaced_hashed_and_matched_as_any():
    page = snapshot.PageState(1, 0, 2, 3, 1, 5, 6)
    for same in (copy(page), deepcopy(page), replace(page)):
        assert same == page
        assert hash(same) == hash(page)
    assert replace(page, epoch=9).epoch == 9
    match page:
        case snapshot.PageState(1, 0, epoch):
            assert epoch == 2


def test_a_subclass_is_built_as_one_of_its_own():
    class Wider(Quick):
        pass

    class Named(Quick):
        __slots__ = ()

    for kind in (Wider, Named):
        made = kind(1, more=[2])
        assert type(made) is kind
        assert [getattr(made, one.name) for one in fields(Quick)] == [1, "two", {}, [2]]
        assert kind(1).more is not kind(1).more
        with pytest.raises(FrozenInstanceError):
            made.first = 2


def test_what_is_no_plain_frozen_record_is_refused():
    @dataclass(frozen=True, slots=True)
    class Below(Plain):
        pass

    @dataclass(frozen=True)
    class Open:
        first: int

    for kind in (Below, Open):
        with pytest.raises(TypeError):
            quick(kind)


def _quick_modules() -> list[str]:
    """Return the modules that build records quickly; the others are not imported, since some need numpy."""
    found = []
    for package in (contract, reference, invariants):
        for one in walk_packages(package.__path__, f"{package.__name__}."):
            spec = find_spec(one.name)
            assert spec is not None
            assert spec.origin is not None
            if "import quick\n" in Path(spec.origin).read_text(encoding="utf-8"):
                found.append(one.name)
    return found


@pytest.mark.parametrize("name", _quick_modules())
def test_every_record_keeps_its_signature(name: str):
    """Names and order of parameters are those of the fields, and which of them may be left out."""
    module = import_module(name)
    kinds = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == name]
    records = [one for one in kinds if hasattr(one, "__dataclass_fields__")]
    assert records
    for kind in records:
        expected = [one for one in fields(kind) if one.init]
        found = signature(kind).parameters
        assert list(found) == [one.name for one in expected], kind
        required = [one.name for one in expected if one.default is one.default_factory is MISSING]
        assert [each for each, one in found.items() if one.default is Parameter.empty] == required, kind


def test_records_of_every_layer_are_looked_at():
    layers = {name.split(".")[1] for name in _quick_modules()}
    assert layers == {"contract", "reference", "invariants"}
