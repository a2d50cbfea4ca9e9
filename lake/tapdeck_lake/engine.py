"""DuckDB with the tables of a lake, or of directories that `tapdeck flows` wrote.

Nothing is loaded: tables are views over Parquet, and DuckDB reads the columns and the row groups
that a question needs. Over directories the accounts of segments come from the files' metadata, and
`hosts` is made when it is asked; a lake has both at hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa

from . import views
from .catalog import Lake
from .community_id import FUNCTIONS
from .errors import LakeError
from .flow_files import SCHEMA, Account
from .place import S3, Place, Service

HOSTS_SCHEMA = pa.schema(
    [
        ("hour", pa.timestamp("us", "UTC")),
        ("sensor", pa.string()),
        ("host", pa.string()),
        ("host_num", pa.int64()),
        ("flows", pa.int64()),
        ("sent_packets", pa.int64()),
        ("sent_bytes", pa.int64()),
        ("received_packets", pa.int64()),
        ("received_bytes", pa.int64()),
        ("first", pa.timestamp("us", "UTC")),
        ("last", pa.timestamp("us", "UTC")),
    ]
)

SEGMENTS = """
select sensor, segment, number, make_timestamp_ns(began_ns) at time zone 'UTC' as began,
    make_timestamp_ns(ended_ns) at time zone 'UTC' as ended, packets, packets_in_rows, rows, lost,
    unseen, cutoff, bytes_cutoff, shed_packets, shed_bytes, rows_expired, packets_expired
"""

OF_FILES = f"""
{SEGMENTS} from (
    select a.*, regexp_extract(a.segment, '^tapdeck-([0-9]+)-', 1)::bigint as number,
        0::bigint as rows_expired, 0::bigint as packets_expired
    from (select from_json(decode(value), '{{shape}}') as a
        from parquet_kv_metadata({{files}}) where decode(key) = 'tapdeck.segment'))
"""


def shape_of_account() -> str:
    """Returns the JSON types of an account, as DuckDB is told them."""
    texts = ("sensor", "segment")
    types = ((name, "VARCHAR" if name in texts else "BIGINT") for name in Account.__annotations__)
    return "{" + ", ".join(f'"{name}": "{kind}"' for name, kind in types) + "}"


def quoted(path: str | Path) -> str:
    """Returns a text as SQL has it."""
    return "'" + str(path).replace("'", "''") + "'"


def listed(paths: Iterable[str | Path]) -> str:
    """Returns a list of paths as SQL has it. What could be a pattern is taken as it stands."""
    return "[" + ", ".join(quoted(escaped(path)) for path in paths) + "]"


def escaped(path: str | Path) -> str:
    """Returns a path whose characters mean themselves where patterns are understood."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path))


def parquet(paths: Sequence[str | Path], schema: pa.Schema) -> str:
    """Returns SQL that gives the rows of files; of none the columns alone."""
    if paths:
        return f"select * from read_parquet({listed(paths)}, hive_partitioning = false)"
    types = {
        pa.string(): "varchar",
        pa.int64(): "bigint",
        pa.int32(): "integer",
        pa.int16(): "smallint",
        pa.int8(): "tinyint",
        pa.binary(): "blob",
        pa.timestamp("us", "UTC"): "timestamptz",
    }
    columns = ", ".join(f'null::{types[field.type]} as "{field.name}"' for field in schema)
    return f"select {columns} where false"


def engine(
    place: Place | None = None, scratch: Path | None = None, memory: str = ""
) -> duckdb.DuckDBPyConnection:
    """Returns DuckDB with the functions of this package.

    Parameters
    ----------
    place
        Where files lie that it is to read, if that may be elsewhere than on a disk.
    scratch
        Where what does not fit into memory goes.
    memory
        How much memory it takes at most, as `2GB`.
    """
    db = duckdb.connect(
        config={"autoinstall_known_extensions": "false", "allow_persistent_secrets": "false"}
    )
    db.execute("set TimeZone = 'UTC'")
    # Progress is for terminals, and standard error is for what must be said.
    db.execute("set enable_progress_bar = false")
    if scratch is not None:
        db.execute(f"set temp_directory = {quoted(scratch)}")
    if memory:
        db.execute(f"set memory_limit = {quoted(memory)}")
    db.execute(FUNCTIONS + views.HOUR_OF)
    if isinstance(place, S3):
        with_s3(db, place.service)
    return db


def with_s3(db: duckdb.DuckDBPyConnection, service: Service) -> None:
    """Lets DuckDB read from S3, as the environment says."""
    there = files("duckdb_extension_httpfs") / "extensions" / f"v{duckdb.__version__}"
    db.load_extension(str(there / "httpfs.duckdb_extension"))
    names = ("key_id", "secret", "session_token")
    told = {name: quoted(key) for name, key in zip(names, service.keys.values(), strict=False)}
    told["region"] = quoted(service.region)
    if service.endpoint:
        told["endpoint"] = quoted(service.endpoint.partition("://")[2])
        told["url_style"] = "'path'"
        told["use_ssl"] = str(service.is_encrypted).lower()
    settings = "".join(f", {name} {value}" for name, value in told.items())
    db.execute(f"create secret (type s3{settings})")


def with_views(db: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Makes the views that stand on `flows` and `segments`."""
    for name, query in views.VIEWS.items():
        db.execute(f"create view {name} as {query}")
    return db


def over_directories(directories: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    """Returns DuckDB over what `tapdeck flows` wrote into directories.

    Raises LakeError where a directory is not there.
    """
    tables: list[str | Path] = []
    for directory in directories:
        if not directory.is_dir():
            raise LakeError(f"{directory} is not there: tapdeck flows --dir STORE -o {directory}")
        found = directory.glob("*.parquet")
        tables += sorted(path for path in found if not path.name.startswith("."))
    db = engine()
    db.execute(f"create view flows as {parquet(tables, SCHEMA)}")
    if tables:
        told = OF_FILES.format(shape=shape_of_account(), files=listed(tables))
        db.execute(f"create view segments as {told}")
    else:
        db.execute(f"create view segments as {no_segments()}")
    hosts = views.HOSTS_TOGETHER.format(parts=views.HOSTS.format(flows="flows"))
    db.execute(f"create view hosts as {hosts}")
    return with_views(db)


def no_segments() -> str:
    """Returns SQL that gives the columns of `segments`, and no rows."""
    numbers = [name for name in Account.__annotations__ if name not in ("sensor", "segment")]
    numbers += ["number", "rows_expired", "packets_expired"]
    columns = ", ".join(f"null::bigint as {name}" for name in numbers)
    texts = "null::varchar as sensor, null::varchar as segment"
    return f"{SEGMENTS} from (select {texts}, {columns}) where false"


def over_lake(lake: Lake) -> duckdb.DuckDBPyConnection:
    """Returns DuckDB over a lake, as it is now."""
    db = engine(lake.place)
    with lake.table.reading():
        flows = [lake.path(file) for file in lake.files("flows")]
        hosts = [lake.path(file) for file in lake.files("hosts")]
        told = lake.segments_table()
        pending = lake.pending_hosts()
        of_pending = [lake.path(file) for file in lake.table.files_of(pending)] if pending else []
    db.execute(f"create view flows as {parquet(flows, SCHEMA)}")
    db.register("segments_told", told)
    db.execute(f"create view segments as {SEGMENTS} from segments_told")
    parts = parquet(hosts, HOSTS_SCHEMA)
    if pending:
        # What the roll-up does not have yet is made here.
        db.register("not_in_hosts", named(pending))
        rows = parquet(of_pending, SCHEMA)
        of_flows = f"(select * from ({rows}) semi join not_in_hosts using (sensor, segment))"
        parts = f"{parts} union all {views.HOSTS.format(flows=of_flows)}"
    db.execute(f"create view hosts as {views.HOSTS_TOGETHER.format(parts=parts)}")
    return with_views(db)


def named(segments: Sequence[tuple[str, str]]) -> pa.Table:
    """Returns segments as a table of their sensors and names."""
    columns = [pa.array([pair[i] for pair in segments], pa.string()) for i in (0, 1)]
    return pa.Table.from_arrays(columns, ["sensor", "segment"])


def scratch_of(lake: Lake) -> Path:
    """Returns where a lake's sorting goes that does not fit into memory."""
    return lake.directory / f".scratch-{os.getpid()}"
