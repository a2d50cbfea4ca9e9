"""The command line of the lake."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import duckdb

from . import ask, check, commit, compact, engine, expire, fetch, hosts, serve, ship, spark_settings
from .catalog import Lake
from .community_id import FUNCTIONS
from .errors import FAILURES, LakeError, counted, told
from .place import S3, SCHEME
from .views import HOUR_OF

DONE, FAILED, INTERRUPTED = 0, 1, 130
WATCH_S = 1.0
"""How often a watched directory is looked at."""


Command = argparse.ArgumentParser


def parser() -> argparse.ArgumentParser:
    """Returns the flags of all commands."""
    top = argparse.ArgumentParser(
        prog="tapdeck-lake",
        description="Flow tables of many sensors as one table. docs/FLEET.md tells all of it.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], says: str) -> Command:
        one = commands.add_parser(name, help=says, description=says[0].upper() + says[1:] + ".")
        one.set_defaults(run=run)
        return one

    one = command("init", run_init, "make a lake: a directory of its own")
    one.add_argument("directory", type=Path, metavar="DIR")
    one.add_argument(
        "--iceberg", action="store_true", help="with an Iceberg table, for Spark and other engines"
    )
    one.add_argument(
        "--server",
        default="",
        metavar="URI",
        help="with --iceberg: the database of PostgreSQL that has its catalog, "
        "postgresql://USER@HOST:PORT/DATABASE [SQLite in DIR]",
    )
    one.add_argument(
        "--files",
        default="",
        metavar="URL",
        help="s3://BUCKET/PREFIX: where all files are to lie but the register [DIR]",
    )

    one = command(
        "ship", run_ship, "copy a sensor's flow tables into a lake, those that are not there yet"
    )
    one.add_argument("--flows", type=Path, required=True, metavar="DIR", help="of tapdeck flows -o")
    one.add_argument(
        "--lake",
        required=True,
        metavar="DIR|URL",
        help="the lake, or where it has its files: s3://BUCKET/PREFIX",
    )
    one.add_argument(
        "--segments",
        type=Path,
        metavar="STORE",
        help="also copy the segments and their indexes, from this store",
    )
    one.add_argument("--watch", action="store_true", help="go on until Ctrl-C")

    of_lake(
        command("commit", run_commit, "take what was shipped into the table, each segment once")
    )
    of_lake(command("hosts", run_hosts, "add what is new to the table of hosts"))

    one = command("compact", run_compact, "make few files of many, sorted by hour and source")
    of_lake(one)
    one.add_argument(
        "--target-bytes",
        type=positive,
        default=compact.TARGET_BYTES,
        metavar="N",
        help="the size of files that is aimed at [512 MiB]",
    )

    one = command(
        "expire", run_expire, "remove files that are no part of the table any more, and old rows"
    )
    of_lake(one)
    one.add_argument(
        "--grace", type=seconds, metavar="S",
        help="keep files that were replaced less than so many seconds ago "
        "[3600; of an Iceberg table 86400]",
    )  # fmt: skip
    one.add_argument(
        "--keep-days", type=positive, metavar="N", help="keep the rows of so many days [all]"
    )

    of_lake(
        command("check", run_check, "count the table, and hold it against the segments' accounts")
    )

    one = command("serve", run_serve, "do all of it in a loop, and give metrics")
    of_lake(one)
    one.add_argument(
        "--flows", type=Path, action="append", default=[], metavar="DIR",
        help="also ship from this directory; may come several times",
    )  # fmt: skip
    plan = serve.Plan()
    for task, each in [
        ("commit", plan.commit_s),
        ("hosts", plan.hosts_s),
        ("compact", plan.compact_s),
        ("expire", plan.expire_s),
    ]:
        one.add_argument(
            f"--{task}-every", type=seconds, default=each, metavar="S", help=f"seconds [{each:.0f}]"
        )
    one.add_argument(
        "--keep-days", type=positive, metavar="N", help="keep the rows of so many days [all]"
    )
    one.add_argument(
        "--listen", default="", metavar="ADDR:PORT", help="give metrics at a loopback address"
    )

    one = command("sql", run_sql, "ask the table, or directories of flow tables, by DuckDB")
    of_source(one)
    one.add_argument("--format", choices=ask.FORMATS, default="table")
    one.add_argument("-o", type=Path, dest="out", metavar="FILE", help="instead of standard output")
    one.add_argument("query", metavar="SQL")

    one = command("fetch", run_fetch, "write the packets behind an answer to a pcapng file")
    of_source(one)
    one.add_argument(
        "--store",
        metavar="PATH|URL",
        help="where the packets are, as tapdeck fetch has it, where {sensor} stands for each row's "
        "sensor [the lake's own segments]",
    )
    one.add_argument("-w", type=Path, dest="write", required=True, metavar="FILE")
    one.add_argument("--tapdeck", default="tapdeck", metavar="FILE", help="the program [tapdeck]")
    one.add_argument("query", metavar="SQL", help="select * from flows ...: whole rows")

    of_lake(
        command(
            "spark-settings",
            run_spark_settings,
            "write what Spark is to be told of the Iceberg table, for spark-defaults.conf",
        )
    )

    command(
        "functions", run_functions, "write community_id and hour_of as SQL, for DuckDB elsewhere"
    )
    return top


def of_lake(command: Command) -> None:
    """Adds the flag that names a lake."""
    command.add_argument("--lake", type=Path, required=True, metavar="DIR", help="the lake")


def of_source(command: Command) -> None:
    """Adds the flags that name what is asked."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--lake", type=Path, metavar="DIR", help="the lake")
    source.add_argument(
        "--flows",
        action="append",
        metavar="DIR",
        help="a directory of tapdeck flows -o, or a pattern of such ('/srv/*/flows'); may come "
        "several times",
    )


def positive(text: str) -> int:
    """Returns a number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("is to be 1 or more")
    return number


def seconds(text: str) -> float:
    """Returns seconds, from 0 on."""
    number = float(text)
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError("is to be 0 or more")
    return number


def say(text: str) -> None:
    """Tells what was done, on standard error."""
    print(f"tapdeck-lake: {text}", file=sys.stderr)


def run_init(options: argparse.Namespace) -> int:
    if options.server and not options.iceberg:
        raise LakeError("--server is for the catalog of an Iceberg table: add --iceberg")
    kind = "iceberg" if options.iceberg else "files"
    Lake.init(options.directory, kind, options.server, options.files)
    return DONE


def run_ship(options: argparse.Namespace) -> int:
    lake: Lake | S3
    if options.lake.startswith(SCHEME):
        lake = S3.parse(options.lake)
        lake.must_be_lake()
    else:
        lake = Lake(Path(options.lake))
    if not options.watch:
        done = ship.ship(options.flows, lake, options.segments)
        say(ship.said(done))
        return FAILED if done.faults else DONE
    stop = asked_to_stop()
    shipper = ship.Shipper(options.flows, lake, options.segments, stop.is_set)
    faults = 0
    while not stop.is_set():
        faults += shipper.look().faults
        stop.wait(WATCH_S)
    return FAILED if faults else DONE


def asked_to_stop() -> threading.Event:
    """Returns what is set when a signal asks the process to end."""
    stop = threading.Event()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    return stop


def run_serve(options: argparse.Namespace) -> int:
    lake = Lake(options.lake)
    plan = serve.Plan(
        commit_s=options.commit_every,
        hosts_s=options.hosts_every,
        compact_s=options.compact_every,
        expire_s=options.expire_every,
        keep_days=options.keep_days,
    )
    stop = asked_to_stop()
    shippers = [ship.Shipper(flows, lake, None, stop.is_set) for flows in options.flows]
    tasks = serve.tasks_of(lake, shippers, plan)
    serve.serve(lake, tasks, options.listen, stop)
    return DONE


def run_commit(options: argparse.Namespace) -> int:
    done = commit.commit(Lake(options.lake))
    say(f"{counted(done.segments, 'segment')} committed, {counted(done.rows, 'row')}")
    return FAILED if done.faults else DONE


def run_hosts(options: argparse.Namespace) -> int:
    done = hosts.hosts(Lake(options.lake))
    say(f"hosts of {counted(done.segments, 'segment')}: {counted(done.rows, 'row')} added")
    return DONE


def run_compact(options: argparse.Namespace) -> int:
    done = compact.compact(Lake(options.lake), options.target_bytes)
    say(f"{counted(done.before, 'file')} became {done.after:,}")
    return DONE


def run_expire(options: argparse.Namespace) -> int:
    done = expire.expire(Lake(options.lake), options.grace, options.keep_days)
    files, size = counted(done.files, "file"), counted(done.bytes, "byte")
    say(f"{files} removed, {size}; {counted(done.rows, 'row')} expired")
    return FAILED if done.faults else DONE


def run_check(options: argparse.Namespace) -> int:
    done = check.check(Lake(options.lake))
    for line in [*done.faults, *done.notes]:
        print(line)
    told = [f"{number:,} {name}" for name, number in done.totals.items()]
    print(", ".join(told))
    if done.faults:
        say("the table is not what its segments have, as said above")
    return FAILED if done.faults else DONE


def lake_of(options: argparse.Namespace) -> Lake | None:
    """Returns the lake that is asked; None where directories are."""
    return None if options.lake is None else Lake(options.lake)


def source(lake: Lake | None, options: argparse.Namespace) -> duckdb.DuckDBPyConnection:
    """Returns DuckDB over what is asked."""
    if lake is not None:
        return engine.over_lake(lake)
    return engine.over_directories(directories(options.flows))


def directories(names: list[str]) -> list[Path]:
    """Returns the directories that names and patterns are of."""
    found: list[Path] = []
    for name in names:
        path = Path(name).absolute()
        pattern = str(path.relative_to(path.anchor))
        matches = [] if path.is_dir() else sorted(Path(path.anchor).glob(pattern))
        found += matches or [path]
    return found


def run_sql(options: argparse.Namespace) -> int:
    ask.ask(source(lake_of(options), options), options.query, options.format, options.out)
    return DONE


def run_fetch(options: argparse.Namespace) -> int:
    lake = lake_of(options)
    store = options.store or lake
    if store is None:
        raise LakeError("where the packets are must be said: --store PATH|URL")
    return fetch.fetch(source(lake, options), options.query, store, options.write, options.tapdeck)


def run_spark_settings(options: argparse.Namespace) -> int:
    for name, value in spark_settings.settings(Lake(options.lake)).items():
        print(f"{name} {value}")
    return DONE


def run_functions(_options: argparse.Namespace) -> int:
    print(f"{FUNCTIONS}{HOUR_OF}".strip())
    return DONE


def main() -> int:
    """Runs one command. Returns its exit code."""
    # Who may read what was recorded is for the owner to say, and for the group.
    os.umask(os.umask(0o077) | 0o027)
    options = parser().parse_args()
    try:
        code: int = options.run(options)
    except BrokenPipeError:
        # What is left to be written goes nowhere, and is no fault at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except FAILURES as error:
        say(told(error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
