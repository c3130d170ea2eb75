"""What a mutant is made of, what is left alone, and by what a mutant is known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="needs the `mutants` extra")

from mutmut.mutation import mutators

from kvcrucible.contract.errors import InputError
from kvcrucible.fuzz.faults.catalogue import source_of
from kvcrucible.fuzz.mutants.equivalent import Equivalent, equivalents, listed_among
from kvcrucible.fuzz.mutants.generate import mutants_in, mutants_of
from kvcrucible.fuzz.mutants.mutant import Mutant
from kvcrucible.fuzz.mutants.operators import _BORROWED, NOT_USED, operator_names
from kvcrucible.fuzz.mutants.sample import draw
from kvcrucible.fuzz.mutants.subjects import ENGINE, LEFT_OUT, left_out_because, subjects

MODULE = f"{ENGINE}.made_up"
ROOT = Path(__file__).resolve().parents[2]

#: One place for each operator.
EVERY = """
def every(self, numbers, flag):
    total = 0
    for number in [one for one in numbers if one]:
        if number > 3 and not flag:
            break
        total += min(number, 5)
        self.seen.append(number)
    while total in numbers:
        total = self.next(total, wrap=flag)
    match total:
        case 0:
            return True
        case _:
            return self.last if flag else None
"""


def changes(source: str) -> set[tuple[str, str, str]]:
    return {(one.operator, one.before, one.after) for one in mutants_in(source, MODULE)}


def test_every_operator_finds_its_place() -> None:
    found = changes(EVERY)
    assert {operator for operator, _, _ in found} == set(operator_names())
    for due in (
        ("number", "total = 0", "total = 1"),
        ("constant", "return True", "return False"),
        ("augmented-assignment", "total += min(number, 5)", "total = min(number, 5)"),
        ("swapped-operator", "total += min(number, 5)", "total -= min(number, 5)"),
        ("swapped-operator", "if number > 3 and not flag:", "if number >= 3 and not flag:"),
        ("swapped-operator", "if number > 3 and not flag:", "if number > 3 or not flag:"),
        ("swapped-call", "total += min(number, 5)", "total += max(number, 5)"),
        ("unary-removed", "if number > 3 and not flag:", "if number > 3 and flag:"),
        ("condition", "if number > 3 and not flag:", "if True:"),
        ("condition", "if number > 3 and not flag:", "if False:"),
        ("condition", "while total in numbers:", "while False:"),
        ("condition", "for number in [one for one in numbers if one]:",
         "for number in [one for one in numbers if True]:"),
        ("keyword", "break", "return"),
        ("keyword", "while total in numbers:", "while total not in numbers:"),
        ("argument", "total = self.next(total, wrap=flag)", "total = self.next(total, )"),
        ("statement-deleted", "self.seen.append(number)", "pass"),
        ("ternary-forced", "return self.last if flag else None",
         "return self.last if (flag) and False else None"),
        ("case-removed", "case 0:\nreturn True", ""),
    ):  # fmt: skip
        assert due in found, due
    assert ("condition", "while total in numbers:", "while True:") not in found


@pytest.mark.parametrize(
    "source",
    [
        '"""Says 1 + 1."""\n',
        "from a import b\n",
        "if TYPE_CHECKING:\n    X = 1 + 1\n",
        "Lease = NewType('Lease', int)\nHash = Callable[[int], int]\n",
        "__slots__ = ('a', 'b')\n",
        "def f(x: Literal[1]) -> Literal[True]:\n    return x\n",
        "@cache(limit=5)\ndef f(x):\n    return x\n",
        "def f(x):\n    assert x > 1 and not x.y\n    return x\n",
        "def f(a, b):\n    return zip(a, b, strict=True)\n",
        "def f(engine, n):\n    engine.work.pages += n + 1\n    return n\n",
        "def f(n):\n    raise BadArgument(f'{n + 1} pages', 1 + n, not n)\n",
        "def f(n):\n    return StaleHandle('x', -n * 2, n > 1)\n",
        "def f(x):\n    return g(x, 'a name', x)\n",
        "def f(x) -> str:\n    return 'one' if x == 1 else 'many'\n",
    ],
)
def test_what_nothing_could_tell_is_left_alone(source: str) -> None:
    assert changes(source) == set()


def test_a_mutant_is_known_by_what_it_changes_and_not_by_its_line() -> None:
    before = list(mutants_in(EVERY, MODULE))
    moved = list(mutants_in(f"import os\n\n# A comment.\n{EVERY}", MODULE))
    assert [one.id for one in moved] == [one.id for one in before]
    assert [one.line - 3 for one in moved] == [one.line for one in before]
    assert len({one.id for one in before}) == len(before)
    renamed = {one.id for one in mutants_in(EVERY.replace("def every", "def other"), MODULE)}
    assert not renamed & {one.id for one in before}


def test_the_same_change_twice_in_a_function_is_two_mutants() -> None:
    twice = "def f(self):\n    self.a.clear()\n    self.b()\n    self.a.clear()\n"
    deleted = [one for one in mutants_in(twice, MODULE) if one.before == "self.a.clear()"]
    assert [(one.nth, one.line) for one in deleted] == [(0, 2), (1, 4)]
    assert deleted[1].apply_to(twice) == "def f(self):\n    self.a.clear()\n    self.b()\n    pass\n"


def test_what_compiles_to_the_same_instructions_is_no_mutant() -> None:
    # The condition is true beforehand: deciding it so changes nothing, deciding it otherwise does.
    assert changes("def f(self):\n    while True:\n        self.x = self.y\n") == {
        ("condition", "while True:", "while False:"),
        ("statement-deleted", "self.x = self.y", "pass"),
    }


@pytest.mark.parametrize("module", [f"{ENGINE}.pool", f"{ENGINE}.execute", f"{ENGINE}.host.slots"])
def test_each_mutant_of_a_module_is_another_source_that_compiles(module: str) -> None:
    source = source_of(module)
    changed = [one.apply_to(source) for one in mutants_of(module)]
    assert len(changed) > 20
    assert len({source, *changed}) == len(changed) + 1
    for one in changed:
        compile(one, module, "exec")


def test_every_operator_of_the_library_is_used_or_has_a_reason() -> None:
    offered = {operator.__name__ for _, operator in mutators.mutation_operators}
    assert offered == {*_BORROWED, *NOT_USED}
    assert not _BORROWED.keys() & NOT_USED.keys()


def test_subjects_are_the_engine_without_what_is_left_out() -> None:
    found = subjects()
    assert {f"{ENGINE}.pool", f"{ENGINE}.host.policies.best_fit", f"{ENGINE}.streams.fences"} <= set(found)
    assert not [name for name in found if ".kernels" in name or ".model" in name]
    assert left_out_because(f"{ENGINE}.streams.strategies.random_walk") is not None
    assert left_out_because(f"{ENGINE}.history_lines") is not None
    assert left_out_because(f"{ENGINE}.histories") is None
    gone = [name for name in LEFT_OUT if name != "streams.strategies" and not _exists(f"{ENGINE}.{name}")]
    assert gone == []


def _exists(module: str) -> bool:
    try:
        return bool(source_of(module))
    except InputError:
        return False


def made_up(module: str, operator: str, number: int) -> Mutant:
    return Mutant(f"{ENGINE}.{module}", "f", operator, number, str(number), "", 0, 0, 0, "")


def test_a_sample_is_in_proportion_and_a_larger_one_goes_on_from_it() -> None:
    mutants = [made_up("a", "x", n) for n in range(600)] + [made_up("b", "y", n) for n in range(200)]
    few, more = draw(mutants, 80, 5), draw(mutants, 300, 5)
    assert more[:80] == few
    assert 17 <= sum(one.module.endswith(".b") for one in few) <= 23
    assert draw(mutants, 80, 6) != few
    whole = draw(mutants, 10_000, 5)
    assert len(whole) == len(set(whole)) == 800
    assert draw([], 3, 0) == []


def test_each_judged_survivor_still_matches_one_mutant_and_says_why() -> None:
    for entry in equivalents():
        found = [one for one in mutants_of(entry.module) if entry.is_of(one)]
        assert len(found) == 1, f"{entry.module} {entry.function}: {entry.before!r} matches {len(found)}"
        assert list(listed_among(found).values()) == [entry]
        assert len(entry.reason.split()) >= 6
        if entry.told_by is not None:
            file, _, name = entry.told_by.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text("utf-8")


#: Plants a source, then runs a test: what pytest would import is not there yet.  Making mutants of a module imports the
#: package that it is in, so that is done elsewhere.
PLANTED = """
import sys, pytest
from kvcrucible.fuzz.faults.overlay import plant
from kvcrucible.fuzz.mutants.server import PlantedSource
module, test = sys.argv[1:]
plant(PlantedSource("mutant", module, sys.stdin.read()))
sys.exit(100 + pytest.main(["-q", "-x", "-p", "no:cacheprovider", test]))
"""

#: What it ends with where the test has run and failed; 1 alone is what Python ends with by itself.
TOLD = 100 + pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [one for one in equivalents() if one.told_by], ids=lambda one: f"{one.module}-{one.function}"
)
def test_a_test_that_is_named_tells_the_mutant(entry: Equivalent) -> None:
    assert entry.told_by is not None
    (mutant,) = [one for one in mutants_of(entry.module) if entry.is_of(one)]
    command = [sys.executable, "-c", PLANTED, mutant.module, entry.told_by]
    source = mutant.apply_to(source_of(mutant.module))
    done = subprocess.run(command, input=source, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == TOLD, done.stdout + done.stderr
