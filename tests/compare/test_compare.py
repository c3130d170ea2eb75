"""Two revisions against each other: the blocks and their judgement on processes that are made up, git on real ones."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="needs the perf extra")

from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.perf.compare.figures import BytecodeChange, bytecode_changes
from kvcrucible.perf.compare.revisions import Revision, check_out
from kvcrucible.perf.compare.run import ROLES, Comparison, _orders, compare
from kvcrucible.perf.compare.smoke import CASES
from kvcrucible.perf.statistics.thresholds import default_thresholds
from kvcrucible.perf.statistics.verdict import Reason, Verdict

BASE, HEAD = (Revision(name, name * 10, Path(name)) for name in ("base", "head"))


class MadeUp:
    """Processes whose truth is known: ``slower`` and ``more`` are what head does in time and in bytecodes."""

    def __init__(
        self, seed: int, *, slower: float = 0.0, more: float = 0.0, pages: int = 0, noise: float = 0.03
    ):
        self.random = random.Random(seed)
        self.slower, self.more, self.pages, self.noise = slower, more, pages, noise
        self.modes: list[str] = []
        self.fails: dict[str, str] = {}

    def __call__(self, revision: Revision, mode: str, slowdown: float = 0.0) -> dict[str, Any]:
        self.modes.append(mode)
        is_head = revision is HEAD
        if mode == "count":
            bytecodes = {"pool:materialise": round(1000 * (1 + self.more * is_head)), "units:begin": 500}
            work = {"pages_granted": 100 + self.pages * is_head}
            failed = self.fails if is_head else {}
            cases = {
                "decode": {"work": work, "bytecodes": bytecodes},
                "cut": {"work": work, "bytecodes": {"a:b": 7}},
            }
            return {"cases": {k: v for k, v in cases.items() if k not in failed}, "failed": failed}
        factor = (1 + self.slower * is_head) * (1 + slowdown)
        seconds = 0.01 * factor * self.random.lognormvariate(0, self.noise)
        timings = [seconds * self.random.lognormvariate(0, 0.01) for _ in range(7)]
        return {"cases": {"decode": {"cpu": timings, "wall": timings}}, "no_instructions": "not here"}


def judged(runner: Callable[..., Any], **options: Any) -> Comparison:
    return compare(BASE, HEAD, runner, default_thresholds(), **options)


def by_name(found: Comparison) -> dict[str, Verdict]:
    return {one.metric: one.verdict for one in found.verdict.metrics}


def test_unchanged_code_does_not_fail() -> None:
    verdicts = [judged(MadeUp(seed), seed=seed).verdict.verdict for seed in range(20)]
    assert Verdict.FAIL not in verdicts
    assert verdicts.count(Verdict.PASS) >= 18


def test_more_work_fails_by_its_count_and_names_case_and_function() -> None:
    found = judged(MadeUp(1, more=0.10))
    assert by_name(found)["bytecodes/decode"] is Verdict.FAIL
    assert by_name(found)["bytecodes/cut"] is Verdict.PASS
    assert by_name(found)["cpu-time/decode"] is not Verdict.FAIL
    assert found.bytecodes == (BytecodeChange("decode", "pool:materialise", 1000, 1100),)
    assert found.verdict.exit_status is ExitStatus.VIOLATION


def test_one_page_more_is_a_failure() -> None:
    assert by_name(judged(MadeUp(1, pages=1)))["work/decode/pages-granted"] is Verdict.FAIL


def test_slower_code_fails_by_time_and_not_by_counts() -> None:
    for seed in range(5):
        found = by_name(judged(MadeUp(seed, slower=0.30)))
        assert found["cpu-time/decode"] is Verdict.FAIL
        assert found["bytecodes/decode"] is Verdict.PASS


def test_a_machine_that_is_too_noisy_is_told_and_not_passed() -> None:
    found = judged(MadeUp(3, noise=0.8))
    assert by_name(found)["cpu-time/decode"] is Verdict.INVALID
    assert found.verdict.exit_status is ExitStatus.INCONCLUSIVE


def test_a_gate_that_does_not_see_the_slowed_twin_is_void() -> None:
    class Blind(MadeUp):
        def __call__(self, revision: Revision, mode: str, slowdown: float = 0.0) -> dict[str, Any]:
            return super().__call__(revision, mode, 0.0)

    assert Reason.SLOWED_TWIN_NOT_FOUND in judged(Blind(1)).verdict.void


def test_counts_alone_take_four_processes() -> None:
    runner = MadeUp(0)
    found = judged(runner, counts_only=True)
    assert runner.modes == ["count"] * 4
    assert found.verdict.verdict is Verdict.PASS
    assert found.not_measured


def test_a_case_that_fails_on_one_side_is_left_out_by_name() -> None:
    runner = MadeUp(0)
    runner.fails = {"cut": "AttributeError: gone"}
    found = judged(runner, counts_only=True)
    assert found.left_out == {"cut": "head: AttributeError: gone"}
    assert not [name for name in by_name(found) if "cut" in name]
    runner.fails = {"cut": "gone", "decode": "gone"}
    with pytest.raises(InputError, match="no case runs"):
        judged(runner, counts_only=True)


def test_counts_that_differ_between_processes_are_no_verdict() -> None:
    class Drifting(MadeUp):
        def __call__(self, revision: Revision, mode: str, slowdown: float = 0.0) -> dict[str, Any]:
            found = super().__call__(revision, mode, slowdown)
            if mode == "count":
                found["cases"]["cut"]["bytecodes"]["a:b"] += len(self.modes)
            return found

    assert by_name(judged(Drifting(0), counts_only=True))["bytecodes/cut"] is Verdict.INVALID


def test_blocks_are_balanced_and_random() -> None:
    import numpy as np

    orders = _orders(np.random.default_rng(0), 24)
    assert all(sorted(order) == sorted(ROLES) for order in orders)
    assert sum(order.index("head") < order.index("base") for order in orders) == 12
    assert len({tuple(order) for order in orders}) > 8


def test_functions_of_a_tiny_share_are_not_named() -> None:
    def side(small: int) -> dict[str, Any]:
        return {"cases": {"x": {"bytecodes": {"a": 10_000, "b": small}, "work": {}}}}

    assert bytecode_changes(side(10), side(20)) == ()
    assert bytecode_changes(side(10), side(2_000)) == (BytecodeChange("x", "b", 10, 2_000),)


def test_every_case_of_the_suite_runs_and_counts_the_same_twice() -> None:
    for name, case in CASES.items():
        if name == "payload":
            pytest.importorskip("torch", reason="needs the engine extra")
        first = case.run()
        assert first == case.run(), name
        assert sum(first.values()) > 0, name


def git(repository: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    done = subprocess.run(
        ["git", "-C", str(repository), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit that looks like this one from afar."""
    found = tmp_path / "repository"
    (found / "engine").mkdir(parents=True)
    (found / "engine" / "a.py").write_text("x = 1\n")
    (found / "src" / "kvcrucible").mkdir(parents=True)
    (found / "src" / "kvcrucible" / "engine").symlink_to("../../engine")
    git(found, "init", "-q")
    git(found, "add", "-A")
    git(found, "commit", "-qm", "one")
    return found


def test_a_revision_is_written_beside_the_checkout(repository: Path, tmp_path: Path) -> None:
    found = check_out(repository, "HEAD", tmp_path / "base")
    assert (found.source / "kvcrucible" / "engine" / "a.py").read_text() == "x = 1\n"
    assert found.commit == git(repository, "rev-parse", "HEAD")
    (repository / "engine" / "a.py").write_text("x = 2\n")
    changed = check_out(repository, ".", tmp_path / "head")
    assert (changed.root / "engine" / "a.py").read_text() == "x = 2\n"
    assert git(repository, "status", "--porcelain") == "M engine/a.py"
    assert git(repository, "stash", "list") == ""


@pytest.mark.parametrize("name", ["no-such-revision", "--help", "-x", ""])
def test_what_is_no_revision_is_refused(repository: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        check_out(repository, name, tmp_path / "base")


def test_a_revision_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_text("")
    git(other, "init", "-q")
    git(other, "add", "-A")
    git(other, "commit", "-qm", "one")
    with pytest.raises(InputError, match="no KV Crucible in this revision"):
        check_out(other, "HEAD", tmp_path / "base")
    with pytest.raises(InputError):
        check_out(tmp_path, "HEAD", tmp_path / "nothing")
