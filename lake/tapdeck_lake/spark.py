"""Packets and flows of stores as tables of Spark: `spark.read.format("tapdeck").load(DIR)`.

The module `tapdeck` reads the stores, on driver and executors, which must have them at the same
path, or can ask for them at a URL. Packets are split into spans of time for which about as much has
to be read, as the indexes tell, so that many executors answer one question.

What is to be read is said by options, and answered from the index: `filter`, `after`, `before` and
others. Conditions of a `where` are Spark's own work, though it has a hook by which sources in
Python may take them (`pushFilters`). With Spark 4.1.4 they hold for the next query of the same data
frame, too: what is to be read is kept from one to the other, and the answer is wrong. Nor does a
source in Python learn which columns are wanted, so they are an option, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import tapdeck
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
WHOLE = 2**62
"""A size that no answer has, so that it is not split."""

SEGMENT = re.compile(r"tapdeck-\d{8,}-(\d{8}T\d{6})Z")

OPTIONS = {
    "path": "",
    "table": "packets",
    "filter": "",
    "after": "",
    "before": "",
    "interface": "",
    "direction": "",
    "columns": "",
    "split": "32",
    "sensor": "",
    "faults": "fail",
}
"""What can be asked for, with what is meant where it is not; `docs/FLEET.md` says more."""


def register(session: SparkSession) -> None:
    """Makes `tapdeck` a format of a session."""
    session.dataSource.register(Tapdeck)


class Tapdeck(DataSource):
    """The format `tapdeck`."""

    @classmethod
    def name(cls) -> str:
        """Returns what `format` is given."""
        return "tapdeck"

    def schema(self) -> StructType:
        """Returns the columns that are asked for, in the order of the option or of the table."""
        question = Question.of(self.options)
        there = question.all_columns()
        absent = [name for name in question.columns if name not in there]
        if absent:
            known = ", ".join(there)
            raise ValueError(f"{question.table} have no column {absent[0]}; there are {known}")
        return StructType([there[name] for name in question.columns or there])

    def reader(self, schema: StructType) -> Reader:
        """Returns what reads the columns of a schema."""
        return Reader(Question.of(self.options), schema.fieldNames())


def described(of: pa.Field) -> StructField:
    """Returns a column of Arrow as one of Spark, which has no unsigned numbers."""
    kinds: list[tuple[Any, DataType]] = [
        (pa.types.is_timestamp, TimestampType()),
        (lambda t: t in (pa.uint32(), pa.uint64(), pa.int64()), LongType()),
        (pa.types.is_integer, IntegerType()),
        (pa.types.is_binary, BinaryType()),
        (lambda t: pa.types.is_string(t) or pa.types.is_dictionary(t), StringType()),
    ]
    kind = next(kind for is_kind, kind in kinds if is_kind(of.type))
    return StructField(of.name, kind, of.nullable)


@dataclass
class Task(InputPartition):
    """What one task reads."""

    store: str
    asked: dict[str, Any]
    oldest: str
    """The segment that the store began with when the task was made."""


@dataclass(frozen=True)
class Question:
    """What a table is made of."""

    stores: list[str]
    table: str
    expression: str
    wanted: dict[str, Any]
    """What else is said of the rows, in the words of the table's method of the module."""
    columns: list[str]
    split: int
    is_strict: bool

    @classmethod
    def of(cls, options: dict[str, str]) -> Question:
        """Reads the options. Raises ValueError where one makes no sense."""
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise ValueError(f"there is no option {unknown[0]}; there are {', '.join(OPTIONS)}")
        said = {**OPTIONS, **options}
        table = chosen(said, "table", ["packets", "flows"])
        wanted: dict[str, Any] = {name: said[name] or None for name in ("after", "before")}
        if table == "flows":
            others = [name for name in ("interface", "direction") if said[name]]
            wanted["sensor"] = said["sensor"] or None
        else:
            others = [name for name in ("sensor",) if said[name]]
            wanted |= {
                "interface": words(said["interface"]),
                "direction": said["direction"] or None,
            }
        if others:
            raise ValueError(f"{others[0]}: this is no option of {table}")
        if not said["split"].isascii() or not said["split"].isdigit() or int(said["split"]) < 1:
            raise ValueError(f"split: {said['split']!r} is none; write a number of MiB, from 1 on")
        return cls(
            stores_at(said["path"]),
            table,
            said["filter"],
            wanted,
            words(said["columns"]),
            int(said["split"]) * MIB,
            chosen(said, "faults", ["fail", "ignore"]) == "fail",
        )

    def tasks(self, store: str) -> Iterator[Task]:
        """Returns what is read of a store by a task each."""
        opened = tapdeck.open(store)
        # Points in time that are told from now are settled here, for all tasks.
        wanted = {name: value for name, value in self.wanted.items() if name != "sensor"}
        size = WHOLE if self.table == "flows" else self.split
        oldest = oldest_segment(store)
        for after, before in opened.split(self.expression, **wanted, size=size):
            yield Task(store, {**self.wanted, "after": after, "before": before}, oldest)

    def ask(self, store: str, asked: dict[str, Any]) -> tapdeck.Answer:
        """Begins an answer of a store."""
        opened = tapdeck.open(store)
        ask = opened.flows if self.table == "flows" else opened.query
        return ask(self.expression, **asked)

    def all_columns(self) -> dict[str, StructField]:
        """Returns the columns of the table, by their names."""
        with self.ask(self.stores[0], {"after": 0, "before": 0}) as nothing:
            return {column.name: described(column) for column in pa.schema(nothing)}


def chosen(said: dict[str, str], name: str, among: list[str]) -> str:
    """Returns the value of an option that is one of a few."""
    if said[name] not in among:
        raise ValueError(f"{name}: {said[name]!r} is none; there are {', '.join(among)}")
    return said[name]


def words(said: str) -> list[str]:
    """Returns what stands between commas."""
    return [word.strip() for word in said.split(",") if word.strip()]


def stores_at(path: str) -> list[str]:
    """Returns the stores at a path, as executors find them, which work in other directories.

    Of URLs there may be several, separated by commas.
    """
    if not path:
        raise ValueError("no store is named: load(DIR)")
    if "://" in path:
        return words(path)
    whole = Path.cwd() / path
    below = str(whole.relative_to(whole.anchor))
    found = sorted(Path(whole.anchor).glob(below)) if set("*?[") & set(path) else [whole]
    if not found:
        raise ValueError(f"there is nothing at {path}")
    return list(map(str, found))


class Reader(DataSourceReader):
    """Reads the columns of one table. It goes to the executors, so it holds nothing open."""

    def __init__(self, question: Question, columns: list[str]) -> None:
        self.question = question
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Returns what is read by a task each."""
        return [task for store in self.question.stores for task in self.question.tasks(store)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads what a task was given."""
        assert isinstance(partition, Task)
        with self.question.ask(partition.store, partition.asked) as answer:
            for batch in answer.to_reader():
                yield pa.record_batch(
                    [as_spark_has_it(batch.column(name)) for name in self.columns],
                    names=self.columns,
                )
            faults = list(answer.losses.faults) if answer.losses else []
        oldest = oldest_segment(partition.store)
        if oldest != partition.oldest and begin_ns(oldest) > partition.asked["after"]:
            # The answer does not know of those that were gone when it began.
            faults.append(f"segments from {partition.oldest} on were deleted meanwhile")
        if self.question.is_strict and faults:
            raise RuntimeError(
                f"{partition.store}: the answer is not whole: {'; '.join(faults)}; "
                'option("faults", "ignore") goes on without'
            )


def oldest_segment(store: str) -> str:
    """Returns the name of the oldest segment of a store; "" of captures, and where all is gone."""
    try:
        return next(iter(tapdeck.Store(store).segments()), "")
    except tapdeck.StoreError:
        return ""


def begin_ns(segment: str) -> int:
    """Returns when a segment was begun; of none, later than any time."""
    named = SEGMENT.match(segment)
    if not named:
        return 2**63
    began = datetime.strptime(named[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(began.timestamp()) * 1_000_000_000


def as_spark_has_it(values: pa.Array) -> pa.Array:
    """Returns a column in the types that Spark has for it."""
    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", "UTC"), safe=False)
    if values.type in (pa.uint32(), pa.uint64()):
        return values.cast(pa.int64())
    if pa.types.is_integer(values.type) and values.type != pa.int64():
        return values.cast(pa.int32())
    return values
