"""What Spark does to a lake's Iceberg table, for tables that are too large for one machine.

    PYTHONPATH=lake spark-submit lake/tapdeck_lake/jobs.py compact
    PYTHONPATH=lake spark-submit lake/tapdeck_lake/jobs.py hosts

Spark must know the table's catalog: `tapdeck-lake spark-settings` tells what to set. Both jobs can
be killed at any moment, run again, and run beside the lake's own commands: each changes a table by
one commit of Iceberg's, which is upon what others have done, or fails.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG = "tapdeck"
FLOWS = "tapdeck.tapdeck.flows"
HOSTS = "tapdeck.tapdeck.hosts"
"""Tables, behind the name of the catalog."""
TARGET_BYTES = 512 << 20
"""The size of files that is aimed at."""
READ_UNTIL = "tapdeck.flows"
"""The property of a snapshot of hosts that tells the newest commit of flows which is in it."""

ORDER = "host_num, host, hour"
SORTED = "hours(start) asc nulls last, src_num asc nulls last, src_ip asc nulls last, start asc"

CREATE_HOSTS = f"""
create table if not exists {HOSTS} (
    hour timestamp, sensor string, host string, host_num bigint, flows bigint,
    sent_packets bigint, sent_bytes bigint, received_packets bigint, received_bytes bigint,
    first timestamp, last timestamp)
using iceberg partitioned by (days(hour))
tblproperties ('write.parquet.compression-codec' = 'zstd',
    'write.metadata.delete-after-commit.enabled' = 'true',
    'history.expire.max-snapshot-age-ms' = '86400000')
"""

HOSTS_OF = """
select timestamp_micros(unix_micros(start) div 3600000000 * 3600000000) as hour, sensor, host,
    host_num, count(*) as flows, sum(sent_packets) as sent_packets, sum(sent_bytes) as sent_bytes,
    sum(received_packets) as received_packets, sum(received_bytes) as received_bytes,
    min(start) as first, max(`end`) as last
from (
    select start, `end`, sensor, src_ip as host, src_num as host_num,
        fwd_packets as sent_packets, fwd_bytes as sent_bytes,
        rev_packets as received_packets, rev_bytes as received_bytes
    from {flows} where src_ip is not null
    union all
    select start, `end`, sensor, dst_ip, dst_num, rev_packets, rev_bytes, fwd_packets, fwd_bytes
    from {flows} where dst_ip is not null)
group by 1, 2, 3, 4
"""
"""The same rows as the view `hosts` of the lake has (views.py)."""

LESS = """
select distinct date_from_unix_date(cast(unix_micros(hour) div 86400000000 as int)) as day
from {there} as there left join {made} as made using (hour, sensor, host)
where there.flows > coalesce(made.flows, 0)
"""
"""Days, UTC, of which hosts have flows that are not in the rows that are there now."""


@dataclass
class Compacted:
    """How many files were put together, and how many they became."""

    before: int
    after: int


@dataclass
class RolledUp:
    """Days of hosts that were made, and days that were left as they are, as `2026-01-02`."""

    days: list[str]
    left: list[str]


def compact(session: SparkSession, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Puts small files of flows together, day by day and sensor by sensor, sorted."""
    done = session.sql(
        f"""call {CATALOG}.system.rewrite_data_files(table => '{FLOWS}', strategy => 'sort',
            sort_order => '{SORTED}', options => map(
            'target-file-size-bytes', '{target_bytes}', 'min-input-files', '2'))"""
    ).first()
    assert done is not None
    return Compacted(done["rewritten_data_files_count"], done["added_data_files_count"])


def hosts(session: SparkSession) -> RolledUp:
    """Brings the table of hosts up to date: by hour, sensor and host, who was seen.

    Days that got files since the last time are made anew, all of them by one commit, which tells
    how far flows were read. So it counts once, whatever is killed or run again. A day that has more
    in hosts than flows still have, because rows are expired, is left.
    """
    session.sql(CREATE_HOSTS)
    session.sql(f"alter table {HOSTS} write distributed by partition locally ordered by {ORDER}")
    snapshot, before = newest(session, FLOWS), newest(session, HOSTS)
    if snapshot is None:
        return RolledUp([], [])
    files = at(session, f"{FLOWS}.entries", snapshot).where("status < 2")
    changed = files.where(f"sequence_number > {read_until(session)}")
    days = sorted(row[0] for row in changed.select("data_file.partition.day").distinct().collect())
    if not days:
        return RolledUp([], [])
    flows = at(session, FLOWS, snapshot).where(within("start", days))
    made = session.sql(HOSTS_OF, flows=flows)
    left = [] if before is None else less(session, made, before, days)
    done = [day for day in days if day not in left]
    until = files.selectExpr("max(sequence_number)").collect()[0][0]
    # Files of what was replaced a day ago: they are this table's own, and questions may still be
    # at what is replaced now.
    session.sql(f"call {CATALOG}.system.expire_snapshots(table => '{HOSTS}')")
    write(made.where(within("hour", done)), until, before)
    if newest(session, HOSTS) == before:
        # There was nothing to write, so no snapshot tells how far flows were read.
        session.sql(f"alter table {HOSTS} set tblproperties ('{READ_UNTIL}' = '{until}')")
    return RolledUp([str(day) for day in done], [str(day) for day in left])


def less(session: SparkSession, made: DataFrame, before: int, days: list[date]) -> list[date]:
    """Returns days, in order, of which hosts had flows at a snapshot that rows no longer have."""
    there = at(session, HOSTS, before).where(within("hour", days))
    return sorted(row[0] for row in session.sql(LESS, made=made, there=there).collect())


def newest(session: SparkSession, table: str) -> int | None:
    """Returns the newest snapshot of a table; None where it has none."""
    main = session.sql(f"select snapshot_id from {table}.refs where name = 'main'").first()
    return None if main is None else int(main[0])


def read_until(session: SparkSession) -> int:
    """Returns the newest commit of flows that hosts tell of."""
    told = session.sql(
        f"select coalesce(max(cast(summary['{READ_UNTIL}'] as bigint)), 0) from {HOSTS}.snapshots"
    ).collect()[0][0]
    properties = session.sql(f"show tblproperties {HOSTS}").where(f"key = '{READ_UNTIL}'")
    return max([int(told), *(int(row["value"]) for row in properties.collect())])


def write(made: DataFrame, until: int, before: int | None) -> None:
    """Puts days of hosts in the place of what is there of them, unless others do so meanwhile."""
    writer = made.writeTo(HOSTS).option(f"snapshot-property.{READ_UNTIL}", until)
    writer = writer.option("isolation-level", "serializable")
    if before is not None:
        writer = writer.option("validate-from-snapshot-id", before)
    writer.overwritePartitions()


def at(session: SparkSession, table: str, snapshot: int) -> DataFrame:
    """Returns a table as it was at a snapshot."""
    return session.sql(f"select * from {table} version as of {snapshot}")


def within(time: str, days: list[date]) -> str:
    """Returns the condition that a time is on one of some days, UTC, for which files are skipped.

    `time` is the column, and `days` are in order.
    """
    spans: list[tuple[date, date]] = []
    for day in days:
        first = spans.pop()[0] if spans and spans[-1][1] == day else day
        spans.append((first, day + timedelta(days=1)))
    midnight = "timestamp_seconds({} * 86400L)".format
    epoch = date(1970, 1, 1)
    ranges = [
        f"{time} >= {midnight((first - epoch).days)} and {time} < {midnight((end - epoch).days)}"
        for first, end in spans
    ]
    return " or ".join(f"({one})" for one in ranges) or "false"


def positive(text: str) -> int:
    """Returns a number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("is to be 1 or more")
    return number


def say(text: str) -> None:
    """Tells what was done, on standard error."""
    print(f"tapdeck-lake: {text}", file=sys.stderr)


def main() -> int:
    """Runs one job in the session that `spark-submit` has set up. Returns the exit code."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    options = argparse.ArgumentParser(prog="jobs.py", description="Jobs of Spark over a lake.")
    jobs = options.add_subparsers(dest="job", required=True, metavar="JOB")
    one = jobs.add_parser("compact", help="put small files together, sorted by hour and source")
    one.add_argument("--target-bytes", type=positive, default=TARGET_BYTES, metavar="N")
    jobs.add_parser("hosts", help="bring the table of hosts up to date")
    asked = options.parse_args()
    session = SparkSession.builder.appName(f"tapdeck-{asked.job}").getOrCreate()
    try:
        if session.conf.get(f"spark.sql.catalog.{CATALOG}", None) is None:
            say("Spark does not know the lake's table: set what tapdeck-lake spark-settings tells")
            return 1
        return run(session, asked)
    except PySparkException as error:
        say(f"nothing was changed: {str(error).splitlines()[0]}")
        return 1
    finally:
        session.stop()


def run(session: SparkSession, asked: argparse.Namespace) -> int:
    """Runs a job, and says what it did. Returns the exit code."""
    if asked.job == "compact":
        done = compact(session, asked.target_bytes)
        say(f"{done.before:,} files became {done.after:,}")
        return 0
    rolled = hosts(session)
    say(f"hosts of {len(rolled.days):,} days made")
    for day in rolled.left:
        say(
            f"{day} got rows after others of that day were expired: its hosts are left as they were"
        )
    return 1 if rolled.left else 0


if __name__ == "__main__":
    sys.exit(main())
