"""Twelve questions, and the engines that are asked: DuckDB, PyIceberg and Spark, over one table."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from tapdeck_lake.catalog import Lake
from tapdeck_lake.engine import over_lake
from tapdeck_lake.iceberg import CATALOG, TABLE
from tapdeck_lake.spark_settings import add_to

# What all of the engines understand. Times are compared as the engines return them. However many
# rows there are, answers fit into memory.
QUESTIONS = {
    "rows": 'select count(*), sum(fwd_packets + rev_packets), min(start), max("end") from flows',
    "by hour": "select date_trunc('hour', start) as hour, count(*), sum(fwd_bytes) from flows "
    "group by 1 order by 1",
    "top ten hosts": "select src_ip, sum(fwd_bytes) as n from flows group by 1 "
    "order by n desc, src_ip limit 10",
    "one host in one hour": "select start, dst_ip, dst_port, fwd_bytes from flows "
    "where src_ip = '10.0.0.0' and start >= timestamp '2026-01-02 00:00:00' "
    "and start < timestamp '2026-01-02 01:00:00' order by start, dst_ip, dst_port, fwd_bytes "
    "limit 1000",
    "sensors and protocols": "select sensor, proto, count(*) from flows group by 1, 2 "
    "order by 1, 2",
    "ports": "select dst_port, sum(rev_packets) from flows where proto = 6 group by 1 order by 1",
    "flags": "select fwd_tcp_flags, count(*) from flows group by 1 order by 1 nulls first",
    "a network": "select count(*), count(distinct dst_num) from flows "
    "where dst_num between 167772160 and 167837695",
    "longest": "select duration_ns, src_ip, src_port, dst_ip from flows "
    "order by duration_ns desc, src_ip, src_port, dst_ip limit 20",
    "seen by several sensors": "select dst_ip, count(distinct sensor) as n from flows group by 1 "
    "having count(distinct sensor) > 1 order by 1",
    "pairs": "select a.src_ip, count(*) "
    "from (select distinct sensor, src_ip, dst_ip from flows where dst_port = 22) a "
    "join (select distinct sensor, src_ip, dst_ip from flows where dst_port = 22) b "
    "on a.src_ip = b.dst_ip and a.dst_ip = b.src_ip and a.sensor <> b.sensor "
    "group by 1 order by 1",
    "where packets lie": 'select sensor, segment, "offset", span, granules from flows '
    "where src_ip = '10.0.0.1' and dst_port = 443 order by 1, 2, 3, 4, 5 limit 1000",
}

Rows = list[tuple[Any, ...]]
Ask = Callable[[str], Rows]
"""Asks an engine a question."""


def plain(rows: list[Any]) -> Rows:
    """Rows as each engine is to have them: a time is one of UTC."""

    def same(value: object) -> object:
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return bytes(value) if isinstance(value, bytearray) else value

    return [tuple(map(same, row)) for row in rows]


def duckdb_over(lake: Lake) -> Ask:
    """The lake's own engine."""
    db = over_lake(Lake(lake.directory))
    return lambda asked: plain(db.execute(asked).fetchall())


def pyiceberg_over(lake: Lake, spill: Path | None = None) -> Ask:
    """The table as PyIceberg reads it, found by its catalog alone.

    PyIceberg reads and asks nothing, so what it reads is put into a table of DuckDB's: all of it
    into memory, or into a file the columns that a question has.
    """
    on_s3 = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
    catalog = load_catalog(CATALOG, type="sql", uri=lake.server, **on_s3)
    db = duckdb.connect(spill or ":memory:")
    db.execute("set TimeZone = 'UTC'")

    def ask(asked: str) -> Rows:
        table = catalog.load_table(TABLE)
        names = [field.name for field in table.schema().fields]
        wanted = [name for name in names if spill is None or re.search(rf"\b{name}\b", asked)]
        db.register("read", table.scan(selected_fields=tuple(wanted)).to_arrow_batch_reader())
        db.execute("create or replace table flows as from read")
        db.unregister("read")
        return plain(db.execute(asked).fetchall())

    return ask


def session_over(spark: SparkSession, lake: Lake) -> SparkSession:
    """A session that knows a lake's catalog."""
    own = spark.newSession()
    # What stands in double quotes is a name, as in the other engines.
    own.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    add_to(own, lake)
    return own


def spark_over(spark: SparkSession, lake: Lake) -> Ask:
    """The table as Spark knows it by its catalog."""
    own = session_over(spark, lake)
    own.sql(f"use {CATALOG}.{CATALOG}")
    return lambda asked: plain(own.sql(asked).collect())


def answers(ask: Ask) -> dict[str, Rows]:
    """What an engine answers to all questions."""
    return {name: ask(asked) for name, asked in QUESTIONS.items()}
