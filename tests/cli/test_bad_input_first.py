"""What was typed is judged before a library is missed: a wrong name ends with 2, not with 5."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvcrucible.cli import optional
from kvcrucible.cli.main import build_app
from kvcrucible.contract.errors import InputError, NotRunError

LIBRARIES = (
    "torch",
    "numpy",
    "triton",
    "scipy",
    "gguf",
    "tokenizers",
    "libcst",
    "mutmut",
    "sqlalchemy",
    "pynvml",
)

#: What is asked, and what the refusal names.
MISTYPED = [
    (("kernels", "--arch", "nope"), "'nope'"),
    (("kernels", "--profile", "nope"), "nope"),
    (("kernels", "--tune", "--arch", "sm_80", "--json"), "leave --arch and --json out"),
    (("fuzz", "--kernels", "--backend", "nope"), "'nope'"),
    (("fuzz", "--kernels", "--profile", "nope"), "nope"),
    (("fuzz", "--depth", "payload", "--profile", "nope"), "nope"),
    (("fuzz", "--depth", "payload", "--engine", "nope"), "'nope'"),
    (("fuzz", "--raw", "--engine", "nope"), "'nope'"),
    (("bench-decode", "--profile", "nope"), "'nope'"),
    (("generate", "--model", "no/such/file"), "no/such/file"),
    (("model", "info", "--model", "no/such/file"), "no/such/file"),
    (("mutants", "show", "nope:f:0000000000"), "nope"),
    (("mutants", "run", "nope:f:0000000000"), "nope"),
    (("perf", "selftest", "--only", "nope"), "nope"),
    (("perf", "selftest", "--scale", "0"), "scale 0"),
    (("perf", "calibrate", "--thresholds", "no/such/file"), "no/such/file"),
    (("perf", "calibrate", "--command", "'"), "--command"),
    (("perf", "compare", "--base", "-nope"), "-nope"),
    (("perf", "compare", "--base", ".", "--thresholds", "no/such/file"), "no/such/file"),
    (("perf", "sampler", "--command", ""), "--command"),
    (("perf", "sampler", "--selfcheck", "--seconds", "1"), "leave --seconds out"),
    (("perf", "sampler", "--pairs", "9"), "leave --pairs out"),
    (("perf", "history", "import", "no/such/file", "--label", "x"), "no/such/file"),
]


@pytest.mark.parametrize(("words", "named"), MISTYPED, ids=lambda value: " ".join(value)[:60])
def test_a_wrong_word_is_told_before_a_library_is_missed(
    words: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)
    error = CliRunner().invoke(build_app(), list(words)).exception
    assert isinstance(error, InputError), repr(error)
    assert named in str(error)


def test_without_the_libraries_what_is_right_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    for words in (("kernels",), ("bench-decode",), ("perf", "selftest"), ("fuzz", "--kernels")):
        assert isinstance(CliRunner().invoke(build_app(), list(words)).exception, NotRunError), words
