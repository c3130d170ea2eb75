from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server of our own, on a socket in its folder, and yield the URL of its database."""
    pytest.importorskip("psycopg", reason="no psycopg to reach PostgreSQL with")
    missing = [name for name in ("initdb", "pg_ctl", "postgres") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no PostgreSQL server here: {', '.join(missing)} not found")
    # Not pytest's folder: the server refuses to run as root, and another user may not enter that one.
    folder = Path(tempfile.mkdtemp(prefix="kvc-pg-"))
    who = {}
    if os.geteuid() == 0:
        who = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        try:
            shutil.chown(folder, "nobody", "nogroup")
        except LookupError:
            pytest.skip("runs as root, and there is no user nobody to run the server as")

    def call(*words: str) -> None:
        # The server keeps its output open: a pipe would never end.
        with (folder / "log").open("ab") as log:
            done = subprocess.run(words, stdout=log, stderr=log, check=False, cwd=folder, timeout=120, **who)
        assert done.returncode == 0, (folder / "log").read_text(encoding="utf-8")

    data = str(folder / "data")
    try:
        call(
            "initdb", "-D", data, "-U", "tester", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"
        )
        call("pg_ctl", "-D", data, "-w", "-o", f"-k {folder} -c listen_addresses='' -F", "start")
        try:
            yield f"postgresql+psycopg://tester@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store, on each database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.sqlite"
    import sqlalchemy as sa

    found: str = request.getfixturevalue("postgres")
    engine = sa.create_engine(found)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return found
