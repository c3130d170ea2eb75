"""Results of other tools, from small files written by hand in the form that each tool documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the perf extra")

from typer.testing import CliRunner

from kvcrucible.cli.main import build_app
from kvcrucible.contract.errors import InputError
from kvcrucible.perf.history import foreign
from kvcrucible.perf.history.foreign import read_foreign

PYTEST_BENCHMARK: dict[str, Any] = {
    "machine_info": {"system": "Linux", "python_version": "3.11.4", "cpu": {"brand_raw": "Some CPU"}},
    "commit_info": {"id": "c0ffee"},
    "datetime": "2026-03-01T10:00:00+00:00",
    "benchmarks": [
        {
            "name": "a",
            "fullname": "t.py::a[1]",
            "stats": {"median": 2.0, "data": [1.0, 2.0, 3.0], "rounds": 3},
        },
        {"name": "b", "fullname": "t.py::b", "stats": {"median": 0.5}},
    ],
}
ASV: dict[str, Any] = {
    "version": 2,
    "commit_hash": "ab" * 20,
    "date": 1_700_000_000_000,
    "params": {"cpu": "Some CPU", "arch": "x86_64", "python": "3.11"},
    "result_columns": ["result", "params", "version", "started_at", "duration", "samples"],
    "results": {
        "suite.time_x": [[0.25], [], "v", 1, 2, [[0.2, 0.25, 0.3]]],
        "suite.time_p": [[1.0, None, 3.0], [["'a'", "'b'", "'c'"]], "v"],
        "suite.broken": [None],
    },
}
GOOGLE: dict[str, Any] = {
    "context": {"date": "2026-03-01T10:00:00+00:00", "num_cpus": 8},
    "benchmarks": [
        {
            "name": "BM/8",
            "run_name": "BM/8",
            "run_type": "iteration",
            "real_time": t,
            "cpu_time": 2 * t,
            "time_unit": "us",
        }
        for t in (1.0, 3.0, 2.0)
    ]
    + [
        {"name": "BM/8_mean", "run_name": "BM/8", "run_type": "aggregate", "real_time": 9, "cpu_time": 9},
        {"name": "Bad", "run_name": "Bad", "run_type": "iteration", "error_occurred": True},
    ],
}
NVBENCH: dict[str, Any] = {
    "devices": [{"id": 0, "name": "Some GPU"}],
    "benchmarks": [
        {
            "name": "copy",
            "states": [
                {
                    "name": "Device=0 N=2^20",
                    "is_skipped": False,
                    "summaries": [
                        {
                            "tag": "nv/cold/time/gpu/mean",
                            "data": [{"name": "value", "type": "float64", "value": "1.5e-05"}],
                        },
                        {"tag": "nv/cold/sample_size", "data": [{"name": "value", "value": "10"}]},
                    ],
                },
                {"name": "Device=0 N=2^30", "is_skipped": True, "skip_reason": "too large"},
            ],
        }
    ],
}


def file(folder: Path, plain: Any) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(plain), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("plain", "tool", "revision", "values", "skipped"),
    [
        (
            PYTEST_BENCHMARK,
            "pytest-benchmark",
            "c0ffee",
            {"pytest-benchmark/t.py::a[1]": 2.0, "pytest-benchmark/t.py::b": 0.5},
            0,
        ),
        (
            ASV,
            "asv",
            "ab" * 20,
            {"asv/suite.time_x": 0.25, "asv/suite.time_p('a')": 1.0, "asv/suite.time_p('c')": 3.0},
            2,
        ),
        (
            GOOGLE,
            "google-benchmark",
            "given",
            {"google-benchmark/BM/8/real_time": 2e-6, "google-benchmark/BM/8/cpu_time": 4e-6},
            1,
        ),
        (NVBENCH, "nvbench", "given", {"nvbench/copy/Device=0 N=2^20/gpu-cold": 1.5e-5}, 1),
    ],
)
def test_figures_of_each_tool(
    tmp_path: Path, plain: Any, tool: str, revision: str, values: dict[str, float], skipped: int
) -> None:
    found = read_foreign(file(tmp_path, plain), "lab", "given")
    assert (found.tool, found.revision, found.skipped) == (tool, revision, skipped)
    assert {one.metric: one.value for one in found.figures} == pytest.approx(values)
    assert dict(found.machine.facts)["machine"] == "lab"


def test_samples_come_along(tmp_path: Path) -> None:
    first = read_foreign(file(tmp_path, PYTEST_BENCHMARK), "lab").figures[0]
    assert (first.samples, first.raw) == (3, {"samples": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {},
        {"benchmarks": []},
        {**PYTEST_BENCHMARK, "benchmarks": [{"name": "a"}]},
        {**PYTEST_BENCHMARK, "benchmarks": "ab"},
        {**PYTEST_BENCHMARK, "benchmarks": [PYTEST_BENCHMARK["benchmarks"][0]] * 2},
        {**PYTEST_BENCHMARK, "datetime": "yesterday"},
        {**ASV, "results": {}},
        {**ASV, "results": {"x": [["fast"], []]}},
        {**GOOGLE, "benchmarks": [{"name": "x", "real_time": 1, "cpu_time": 1, "time_unit": "years"}]},
        {**NVBENCH, "benchmarks": [{"name": "x", "states": 3}]},
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, plain: Any) -> None:
    with pytest.raises(InputError):
        read_foreign(file(tmp_path, plain), "lab")


def test_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MAX_FIGURES", 1)
    with pytest.raises(InputError, match="more than"):
        read_foreign(file(tmp_path, PYTEST_BENCHMARK), "lab")
    monkeypatch.setattr(foreign, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="more than 10 bytes"):
        read_foreign(file(tmp_path, PYTEST_BENCHMARK), "lab")


def test_the_commands_import_list_and_show(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/h.sqlite"
    runner = CliRunner(env={"COLUMNS": "200"})

    def run(*words: str) -> str:
        done = runner.invoke(build_app(), ["perf", "history", *words, "--store", store])
        assert done.exit_code == 0, done.output
        return done.output

    path = str(file(tmp_path, PYTEST_BENCHMARK))
    assert "2 figures of pytest-benchmark at c0ffee" in run("import", path, "--label", "lab")
    assert "t.py::a[1]" in run("list")
    plain = json.loads(run("show", "pytest-benchmark/t.py::b", "--json"))
    assert [point["value"] for point in plain["points"]] == [0.5]
    assert "MEASURED" in run("show", "pytest-benchmark/t.py::b")
    missing = runner.invoke(build_app(), ["perf", "history", "show", "nothing", "--store", store])
    assert isinstance(missing.exception, InputError)


def test_the_store_benchmark_says_that_its_figures_are_made_up(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        build_app(), ["perf", "history", "benchmark", "--rows", "1500", "--series", "150", "--json"]
    )
    plain = json.loads(done.output)
    assert plain["origin"] == "SIMULATED"
    assert (plain["rows"], plain["series"], plain["runs"]) == (1500, 150, 10)
    assert done.exit_code == (0 if plain["held"] else 1)
