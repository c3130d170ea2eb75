"""Thresholds and certificates: what they say, and every way in which a file can be unusable."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

pytest.importorskip("scipy", reason="needs the `perf` extra")

from perf_samples import NOW, SIMULATED, pairs_of, thresholds
from scipy import stats

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.statistics.metrics import Confirmation, MetricKind
from kvcrucible.perf.statistics.noise_floor import Noise, certify, measure_noise, read_noise_floor
from kvcrucible.perf.statistics.thresholds import MAX_BYTES, default_thresholds, read_thresholds

CONTRACT = {
    "end-to-end-decode": 0.01,
    "decode-attention": 0.03,
    "cached-attention": 0.03,
    "draft-attention": 0.03,
    "prefill": 0.03,
    "append": 0.05,
}


@pytest.fixture
def plain(repository: Path) -> dict[str, object]:
    path = repository / "src" / "kvcrucible" / "perf" / "thresholds.yaml"
    loaded: dict[str, object] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "file"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def test_the_defaults_are_the_contract() -> None:
    limits = default_thresholds()
    for metric, effect in CONTRACT.items():
        policy = limits.policy(f"{metric}/some-case")
        assert (policy.kind, policy.minimum_effect) == (MetricKind.SAMPLED, effect)
        assert policy.cycles is Confirmation.REQUIRED
    assert limits.policy("work/pages-granted").kind is MetricKind.EXACT
    assert limits.policy("work").minimum_effect == 0
    with pytest.raises(InputError, match="no threshold"):
        limits.policy("nothing/like-it")


def test_a_file_of_ones_own_is_read(tmp_path: Path, plain: dict[str, object]) -> None:
    assert read_thresholds(written(tmp_path, yaml.safe_dump(plain))) == default_thresholds()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("format: kvcrucible.thresholds/1", "format: kvcrucible.thresholds/2", "format"),
        ("minimum_effect: 0.01", "minimum_effect: 0", "end-to-end-decode"),
        ("minimum_effect: 0.01", "minimum_effect: .nan", "not finite"),
        ("minimum_effect: 0.01", "minimum_effect: .inf", "not finite"),
        ("minimum_effect: 0.01", "minimum_effect: '0.01'", "end-to-end-decode"),
        ("kind: exact", "kind: estimated", "work"),
        ("kind: exact", "kind: exact, cycles: required", "work"),
        ("kind: exact", "kind: exact, kind: exact", "stands twice"),
        ("looks: [6, 12, 24]", "looks: [12, 6]", "increasing"),
        ("looks: [6, 12, 24]", "looks: [2, 6]", "looks"),
        ("error_rate: 0.05", "error_rate: 0.5", "error_rate"),
        ("error_rate: 0.05", "error_rate: 0.05\n  surprise: 1", "surprise"),
        ("append: {", "append: &a {", None),
        ("append: {kind: sampled, minimum_effect: 0.05, cycles: required}", "append: *a", "alias"),
        ("metrics:", "metrics: !!python/object/apply:os.getcwd []\nold:", "constructor"),
        ("metrics:", "metrics: {a: " + "[" * 40 + "]" * 40 + "}\nold:", "deeper"),
        ("metrics:", "metrics: {a: " + "[" * 5000 + "\nold:", "file: "),
    ],
)
def test_thresholds_that_cannot_be_used_are_refused(
    tmp_path: Path, repository: Path, old: str, new: str, problem: str | None
) -> None:
    text = (repository / "src" / "kvcrucible" / "perf" / "thresholds.yaml").read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path = written(tmp_path, text.replace(old, new, 1))
    if problem is None:
        assert read_thresholds(path) == default_thresholds()
    else:
        with pytest.raises(InputError, match=problem):
            read_thresholds(path)


def test_files_are_read_within_limits(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than"):
        read_thresholds(written(tmp_path, b" " * (MAX_BYTES + 1)))
    with pytest.raises(InputError, match="UTF-8 at byte 2"):
        read_thresholds(written(tmp_path, b"a:\xff"))
    with pytest.raises(InputError, match="not a regular file; write it as the package's own"):
        read_thresholds(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read_thresholds(tmp_path / "absent")


def test_a_certificate_comes_back_as_it_was_written(tmp_path: Path) -> None:
    limits = thresholds()
    noise = {"time/a": measure_noise(pairs_of("time/a", 0.0), limits.policy("time/a"))}
    certificate = certify(noise, SIMULATED, NOW, 30)
    certificate.write(tmp_path / "new" / "floor.json")
    assert read_noise_floor(tmp_path / "new" / "floor.json") == certificate
    assert certificate.expires - certificate.created == timedelta(days=30)
    assert '"origin": "SIMULATED"' in (tmp_path / "new" / "floor.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "kvcrucible.noise-floor/9"}, "format"),
        ({"expires": "2026-05-01T12:00:00+00:00"}, "expires before"),
        ({"expires": "2026-13-01T12:00:00+00:00"}, "month"),
        ({"created": "yesterday"}, "created"),
        ({"noise": {}}, "noise"),
        ({"noise": {"time/a": {"pairs": 24, "deviation": 0.02, "deviation_upper": 0.01}}}, "upper limit"),
        ({"noise": {"time/a": {"pairs": 2, "deviation": 0.02, "deviation_upper": 0.03}}}, "pairs"),
        ({"noise": {"time/a": {"pairs": 9, "deviation": 0, "deviation_upper": 0.03}}}, "deviation"),
        ({"machine": {"origin": "MEASURED"}}, "machine"),
    ],
)
def test_certificates_that_cannot_be_used_are_refused(
    tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    plain = certify({"time/a": Noise(24, 0.01, 0.013)}, SIMULATED, NOW, 30).to_plain() | change
    with pytest.raises(InputError, match=problem):
        read_noise_floor(written(tmp_path, json.dumps(plain)))


def test_a_certificate_whose_machine_was_edited_is_refused(tmp_path: Path) -> None:
    plain = certify({"time/a": Noise(24, 0.01, 0.013)}, SIMULATED, NOW, 30).to_plain()
    plain["machine"] = plain["machine"] | {"origin": "MEASURED"}
    with pytest.raises(InputError, match="edited"):
        read_noise_floor(written(tmp_path, json.dumps(plain)))
    with pytest.raises(InputError, match="twice"):
        read_noise_floor(written(tmp_path, '{"format": 1, "format": 2}'))
    with pytest.raises(InputError, match="NaN"):
        read_noise_floor(written(tmp_path, '{"format": NaN}'))


def test_the_floor_is_what_the_pairs_resolve() -> None:
    samples = pairs_of("time/a", 0.0, noise=0.01)
    noise = measure_noise(samples, thresholds().policy("time/a"))
    assert noise.deviation_upper == pytest.approx(noise.deviation * (23 / stats.chi2.ppf(0.05, 23)) ** 0.5)
    due = 2.718281828459045 ** (stats.t.ppf(0.95, 11) * noise.deviation_upper / 12**0.5) - 1
    assert noise.floor(12, 0.05) == pytest.approx(due)
    assert noise.floor(24, 0.05) < noise.floor(12, 0.05) < noise.floor(12, 0.01)


def test_pairs_of_which_no_floor_can_be_made_are_refused() -> None:
    policy = thresholds().policy("time/a")
    for samples, problem in (
        (pairs_of("time/a", 0.0, 5), "5 pairs"),
        (pairs_of("time/a", 0.05), "differs from itself"),
        (pairs_of("time/a", 0.0, noise=0.0), "no variation"),
        (pairs_of("time/a", -1.5), "positive"),
    ):
        with pytest.raises(InputError, match=problem):
            measure_noise(samples, policy)


def test_times_of_a_certificate_are_utc() -> None:
    from zoneinfo import ZoneInfo

    local = datetime(2026, 6, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))
    assert certify({"time/a": Noise(24, 0.01, 0.013)}, SIMULATED, local, 1).created == NOW
