from __future__ import annotations

from pathlib import Path

import pytest
from nvml_stand_in import compile_stand_in, compiler


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the compiled stand-in of the driver's library."""
    pytest.importorskip("pynvml", reason="needs the perf extra")
    if compiler() is None:
        pytest.skip("no C compiler, so no stand-in for the driver's library")
    return compile_stand_in(tmp_path_factory.mktemp("stand-in"))
