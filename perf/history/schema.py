"""Tables of the store and the migrations from one version to the next.

Every version is a function in :data:`MIGRATIONS` that is never edited again; opening a store runs those it lacks,
in one transaction.  A store that is newer than this program is refused: half-understood history is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from kvcrucible.contract.errors import InputError

#: Key of the lock under which PostgreSQL stores are brought up to date: two programs may open one at once.
_LOCK = 7_264_015_312

metadata = sa.MetaData()

version_table = sa.Table("kvcrucible_version", metadata, sa.Column("version", sa.Integer, primary_key=True))

#: Machines by the id of their fingerprint, which says SIMULATED where it is.  ``facts`` is JSON.
machines = sa.Table(
    "machines",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fingerprint", sa.String(100), nullable=False, unique=True),
    sa.Column("origin", sa.String(20), nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
)

#: One metric on one machine.  So a series has one origin, and no query can bring two together.
series = sa.Table(
    "series",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("machine", sa.ForeignKey("machines.id"), nullable=False),
    sa.Column("metric", sa.String(300), nullable=False),
    sa.Column("unit", sa.String(20), nullable=False),
    sa.UniqueConstraint("metric", "machine"),
)

#: One run of a suite.  ``started_s``: seconds since 1970, UTC.  ``command`` remakes it.
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("machine", sa.ForeignKey("machines.id"), nullable=False),
    sa.Column("revision", sa.String(100), nullable=False),
    sa.Column("started_s", sa.Float, nullable=False),
    sa.Column("source", sa.String(40), nullable=False),
    sa.Column("command", sa.Text, nullable=False),
)

#: Raw samples under the SHA-256 of what they are: compressed JSON, stored once however often they are named.
blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("length", sa.Integer, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

#: One figure of one series in one run.  The primary key is the order on disk (SQLite keeps no other), so that a
#: series is one range; the index on the run serves comparisons of runs.
summaries = sa.Table(
    "summaries",
    metadata,
    sa.Column("series", sa.ForeignKey("series.id"), primary_key=True),
    sa.Column("run", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("value", sa.Float, nullable=False),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("rejected", sa.Integer, nullable=False, server_default="0"),
    sa.Column("raw", sa.ForeignKey("blobs.sha256"), nullable=True),
    sqlite_with_rowid=False,
)
summaries_by_run = sa.Index("summaries_by_run", summaries.c.run)


def _first(connection: sa.Connection) -> None:
    old = sa.MetaData()
    sa.Table(
        "machines",
        old,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("fingerprint", sa.String(100), nullable=False, unique=True),
        sa.Column("origin", sa.String(20), nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
    )
    sa.Table(
        "series",
        old,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("machine", sa.ForeignKey("machines.id"), nullable=False),
        sa.Column("metric", sa.String(300), nullable=False),
        sa.Column("unit", sa.String(20), nullable=False),
        sa.UniqueConstraint("metric", "machine"),
    )
    sa.Table(
        "runs",
        old,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("machine", sa.ForeignKey("machines.id"), nullable=False),
        sa.Column("revision", sa.String(100), nullable=False),
        sa.Column("started_s", sa.Float, nullable=False),
        sa.Column("source", sa.String(40), nullable=False),
        sa.Column("command", sa.Text, nullable=False),
    )
    sa.Table(
        "blobs",
        old,
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("length", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    sa.Table(
        "summaries",
        old,
        sa.Column("series", sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("run", sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("raw", sa.ForeignKey("blobs.sha256"), nullable=True),
        sqlite_with_rowid=False,
    )
    old.create_all(connection)


def _rejected_and_runs(connection: sa.Connection) -> None:
    """Count rejected samples beside the kept ones; find the figures of one run without reading all."""
    connection.execute(sa.text("ALTER TABLE summaries ADD COLUMN rejected INTEGER NOT NULL DEFAULT 0"))
    connection.execute(sa.text("CREATE INDEX summaries_by_run ON summaries (run)"))


#: Version n is reached by the first n of them.
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_first, _rejected_and_runs)


def bring_up_to_date(
    connection: sa.Connection, migrations: tuple[Callable[[sa.Connection], None], ...] = MIGRATIONS
) -> int:
    """Run the migrations that the store lacks, inside the transaction of ``connection``; return how many ran.

    Raises :class:`InputError` for a store that is newer than ``migrations``, which is left as it is.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    version_table.create(connection, checkfirst=True)
    version = connection.execute(sa.select(sa.func.max(version_table.c.version))).scalar() or 0
    if version > len(migrations):
        raise InputError(
            f"the store has version {version}, this program knows {len(migrations)}: use a newer kvcrucible"
        )
    for number, migrate in enumerate(migrations[version:], start=version + 1):
        migrate(connection)
        connection.execute(version_table.insert().values(version=number))
    return len(migrations) - version
