"""``make setup`` says what it does and how to go on, the first time and when there is nothing left to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

#: A Python that makes an environment whose pip installs nothing.
PYTHON = """#!/bin/sh
if [ "$2" = venv ]; then
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\necho "pip was asked: $*"\\n' > "$3/bin/python"
    chmod +x "$3/bin/python"
fi
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_it_says_what_it_does_and_how_to_go_on(repository: Path, tmp_path: Path) -> None:
    if not (repository / "Makefile").is_file():
        pytest.skip("the Makefile is not part of what these tests lie in")
    python, venv = tmp_path / "python", tmp_path / "venv"
    python.write_text(PYTHON, encoding="ascii")
    python.chmod(0o755)

    def make() -> str:
        command = [
            "make",
            "-C",
            str(repository),
            "setup",
            f"VENV={venv}",
            f"PYTHON={python}",
            "EXTRAS=dev,perf",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    first, again = make(), make()
    assert f"Setting up {venv} with {python}: the extras dev,perf" in first
    # Where no terminal listens pip is told to be quiet.
    assert "pip was asked: -m pip install --quiet" in first
    assert "Setting up" not in again
    for shown in (first, again):
        assert f"{venv} is ready. Go on with `make fuzz`, `make test`" in shown
        assert f"`source {venv}/bin/activate`" in shown
