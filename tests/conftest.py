"""What holds for every test: one thread a process, no colours from the caller's terminal, one Hypothesis profile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: pytest-xdist already runs one process a core; torch's and BLAS's own threads on top only fight over them, and sums
#: that are split differently from machine to machine differ in their last bits. Read when the library is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

#: Each of these makes rich and typer colour or wrap what a test reads back.
for variable in ("FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "TERMINAL_WIDTH"):
    os.environ.pop(variable, None)
os.environ["COLUMNS"] = "120"

# Whatever runs in the background of a shell script ignores an interruption, and so would every command under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples of a machine take as long as they take on a loaded core: a deadline would only make tests flaky.
settings.register_profile(
    "kvcrucible", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
# For continuous integration: the same examples in every run, so that a change fails for what it changed.
settings.register_profile(
    "kvcrucible-ci", settings.get_profile("kvcrucible"), derandomize=True, database=None
)
settings.load_profile("kvcrucible-ci" if os.environ.get("CI") else "kvcrucible")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout (or of the unpacked source archive) that holds these tests."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def from_data() -> Callable[[str], Path]:
    """Find a file by its path below the folder that ``KVCRUCIBLE_DATA`` names, or skip; nowhere else is looked."""
    folder = os.environ.get("KVCRUCIBLE_DATA")

    def find(name: str) -> Path:
        if not folder or not (path := Path(folder) / name).is_file():
            pytest.skip(f"no {name}: set KVCRUCIBLE_DATA to the folder that holds it")
        return path

    return find


@pytest.fixture(scope="session", params=["cpu", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name the kernels that calls get which name none; tests that use this run once over each."""
    pytest.importorskip("torch")
    from kvcrucible.engine.kernels.backends import BACKENDS, VARIABLE

    name: str = request.param
    reason = BACKENDS[name].why_not([], None)
    if reason is not None:
        pytest.skip(f"kernels {name}: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, name)
        yield name
