"""``kvcrucible perf``: what the commands print, write and return."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("scipy", reason="needs the `perf` extra")

from kvcrucible.cli.main import build_app
from kvcrucible.contract.errors import InputError
from kvcrucible.perf import builtin_benchmark, calibration
from kvcrucible.perf.calibration import fresh_process, unchanged_pairs
from kvcrucible.perf.statistics.fingerprint import this_machine
from kvcrucible.perf.statistics.noise_floor import read_noise_floor
from kvcrucible.perf.statistics.thresholds import default_thresholds

#: A benchmark that takes no time, and whose noise is known: about 1 %.
QUICK = "import json, random; print(json.dumps({'append/quick': [random.gauss(1, 0.007)] * 3}))"


def python(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), ["perf", *arguments])


def test_calibrate_writes_a_certificate_of_this_machine(tmp_path: Path) -> None:
    out = tmp_path / "floor.json"
    arguments = ["--pairs", "8", "--command", shlex.join(python(QUICK)), "--out", str(out)]
    done = invoke("calibrate", *arguments, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    certificate = read_noise_floor(out)
    assert certificate.to_plain() == told["certificate"]
    assert certificate.machine == this_machine()
    assert certificate.noise["append/quick"].pairs == 8
    assert 0.001 < certificate.noise["append/quick"].deviation < 0.05
    assert told["metrics"][0]["usable"]
    shown = invoke("calibrate", *arguments)
    assert "MEASURED" in shown.stdout
    assert "good until" in shown.stdout
    (former,) = tmp_path.glob("floor-*.json")
    assert read_noise_floor(former) == certificate
    assert former.name in shown.stderr


def test_calibrate_is_inconclusive_where_the_noise_is_above_the_threshold(tmp_path: Path) -> None:
    noisy = shlex.join(python(QUICK.replace("0.007", "0.2")))
    done = invoke("calibrate", "--pairs", "6", "--command", noisy, "--out", str(tmp_path / "f"))
    assert done.exit_code == 3
    assert "will refuse" in done.stdout


def test_calibrate_refuses_a_metric_without_a_threshold(tmp_path: Path) -> None:
    stranger = shlex.join(python(QUICK.replace("append/quick", "stranger")))
    done = invoke("calibrate", "--pairs", "6", "--command", stranger, "--out", str(tmp_path / "f"))
    assert isinstance(done.exception, InputError)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise SystemExit(3)", "status 3"),
        ("raise ValueError('[bold]so[/]')", r"\[bold\]so"),
        ("print('no json')", "Expecting value"),
        ("print('[]')", "object"),
        ("print('{}')", "object"),
        ("print('{\"append\": []}')", "append"),
        ("print('{\"append\": [0]}')", "append"),
        ("print('{\"append\": [true]}')", "append"),
        ("print('{\"append\": [1e999]}')", "finite"),
        ("print('{\"append\": 1}')", "append"),
        ("print(' ' * (2 << 20))", "bytes of output"),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_a_benchmark_that_misbehaves_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        fresh_process(python(text), 1.0 if "sleep" in text else 60.0)


def test_a_benchmark_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="No such file"):
        fresh_process(["/no/such/program"])


def test_processes_are_called_in_the_drawn_order_and_summarised_by_their_median() -> None:
    calls: list[int] = []

    def process() -> dict[str, Sequence[float]]:
        calls.append(len(calls) + 1)
        return {"append/a": [calls[-1], 1000.0, 0.5]}

    *_, (samples,) = unchanged_pairs(this_machine(), 6, 5, process)
    assert len(calls) == 12
    for block, first in enumerate(samples.head_first):
        earlier, later = float(2 * block + 1), float(2 * block + 2)
        assert (samples.base[block], samples.head[block]) == ((later, earlier) if first else (earlier, later))
    assert sum(samples.head_first) == 3


def test_processes_with_other_metrics_are_refused() -> None:
    answers = iter([{"append/a": [1.0]}, {"append/b": [1.0]}])
    with pytest.raises(InputError, match="another process"):
        list(unchanged_pairs(this_machine(), 6, 0, lambda: next(answers)))


def test_the_built_in_benchmark_runs_in_a_fresh_process() -> None:
    found = fresh_process()
    assert found.keys() == builtin_benchmark.CASES.keys()
    assert all(len(timings) == builtin_benchmark.TIMINGS for timings in found.values())
    for metric in found:
        default_thresholds().policy(metric)
    assert calibration.BUILTIN[0] == sys.executable


def test_the_self_test_prints_its_figures_with_their_error() -> None:
    done = invoke("selftest", "--only", "processes", "--scale", "0.5")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("SIMULATED")
    assert "Monte-Carlo" in done.stdout
    done = invoke("selftest", "--only", "processes", "--scale", "0.5", "--json")
    told = json.loads(done.stdout)
    assert told["origin"] == "SIMULATED"
    assert told["status"] == done.exit_code
    for figure in told["figures"]:
        assert figure["origin"] == "SIMULATED"
        low, high = figure["monte_carlo_95"]
        assert low < figure["rate"] < high


def test_the_self_test_returns_1_where_a_bound_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcrucible.perf.statistics import looks

    monkeypatch.setattr(looks, "levels", lambda rate, at: (rate,) * len(at))
    done = invoke("selftest", "--only", "boundary", "--scale", "0.1")
    assert done.exit_code == 1
    assert "missed" in done.stdout
