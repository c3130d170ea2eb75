"""Opens the database behind a store: SQLite unless a URL says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.history.schema import bring_up_to_date

#: Where results go unless somebody says otherwise.
DEFAULT_URL = "sqlite:///results/history.sqlite"

#: Milliseconds that a writer waits for another before it gives up.
BUSY_MS = 30_000


def open_database(url: str) -> sa.Engine:
    """Return an engine on ``url``, brought up to date; the caller disposes of it.

    A SQLite file and its folder are made where they are absent.  Raises :class:`InputError`, in which no password
    stands, where the URL makes no sense, its driver is absent or the server does not answer.
    """
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        raise InputError(
            "store: not a database URL; write sqlite:///FILE or postgresql+psycopg://…"
        ) from None
    shown = parsed.render_as_string(hide_password=True)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    try:
        if is_sqlite and parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(parsed)
        if is_sqlite:
            sa.event.listen(engine, "connect", _on_connect)
            sa.event.listen(engine, "begin", _on_begin)
    except (OSError, ImportError, SQLAlchemyError) as error:
        raise InputError(f"store {shown}: {_first_line(error)}") from None
    try:
        with writing(engine) as connection:
            bring_up_to_date(connection)
    except (OSError, SQLAlchemyError) as error:
        engine.dispose()
        raise InputError(f"store {shown}: {_first_line(error)}") from None
    except InputError:
        engine.dispose()
        raise
    return engine


def writing(engine: sa.Engine) -> Any:
    """Return a context manager of a connection in a transaction that will write.

    SQLite then takes its lock at the start: a transaction that begins by reading and then finds somebody else writing
    would fail at once instead of waiting.
    """
    return engine.execution_options(kvcrucible_writes=True).begin()


def _on_connect(connection: Any, _: Any) -> None:
    # The driver's own transactions do not cover CREATE and ALTER; SQLAlchemy's BEGIN below does.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}", "synchronous=NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("kvcrucible_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
