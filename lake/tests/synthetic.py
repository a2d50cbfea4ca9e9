"""Flow tables as `tapdeck flows` writes them, drawn: fast, and as many as a test wants."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tapdeck_lake.flow_files import SCHEMA, day_of

DAY_US = 86_400_000_000
T0_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z"""

DIFFERENCES = ("start", "end", "duration_ns", "src_num", "src_port", "offset")
ENCODINGS = dict.fromkeys(DIFFERENCES, "DELTA_BINARY_PACKED") | {"runs": "DELTA_LENGTH_BYTE_ARRAY"}
"""Of columns that have no dictionary, as crates/flow/src/parquet_file.rs has them."""


def stem_of(number: int, begin_us: int) -> str:
    began = datetime.fromtimestamp(begin_us // 1_000_000, UTC)
    return f"tapdeck-{number:08d}-{began:%Y%m%dT%H%M%SZ}"


@cache
def addresses() -> pa.Array:
    """All addresses that flows are between, by their numbers."""
    return pa.array([f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in range(1 << 18)])


def rows_of(
    rng: np.random.Generator, sensor: str, stem: str, times: tuple[int, int], rows: int
) -> pa.Table:
    """Rows of a segment whose slices begin within times, UTC microseconds."""
    start = rng.integers(*times, rows)
    lasted = rng.integers(0, 50_000_000, rows)
    ends = [np.minimum(rng.zipf(1.3, rows), 1 << 18) - 1 for _ in range(2)]
    proto = rng.choice(np.array([6, 17], np.int32), rows)
    packets, back = rng.integers(1, 1000, rows), rng.integers(0, 1000, rows)
    span = rng.integers(1 << 17, 1 << 22, rows)
    flags = pa.array(rng.integers(0, 64, rows).astype(np.int16), mask=proto != 6)
    columns: dict[str, Any] = {
        "sensor": pa.array([sensor] * rows, pa.string()),
        "segment": pa.array([stem] * rows, pa.string()),
        "start": pa.array(start).cast(pa.timestamp("us", "UTC")),
        "end": pa.array(start + lasted).cast(pa.timestamp("us", "UTC")),
        "duration_ns": pa.array(lasted * 1000),
        "ip_version": pa.array(np.full(rows, 4, np.int32)),
        "proto": pa.array(proto),
        "ether_type": pa.array(np.full(rows, 0x0800, np.int32)),
        "src_ip": addresses().take(pa.array(ends[0])),
        "dst_ip": addresses().take(pa.array(ends[1])),
        "src_num": pa.array(ends[0] + (10 << 24)),
        "dst_num": pa.array(ends[1] + (10 << 24)),
        "src_port": pa.array(rng.integers(1024, 65_536, rows).astype(np.int32)),
        "dst_port": pa.array(rng.choice(np.array([22, 53, 80, 443, 8080], np.int32), rows)),
        "fwd_packets": pa.array(packets),
        "rev_packets": pa.array(back),
        "fwd_bytes": pa.array(packets * rng.integers(60, 1515, rows)),
        "rev_bytes": pa.array(back * 60),
        "fwd_tcp_flags": flags,
        "rev_tcp_flags": flags,
        "end_reason": pa.array(np.full(rows, 4, np.int8)),
        "lost_near": pa.array(np.zeros(rows, np.int32)),
        "offset": pa.array(rng.integers(4096, 1 << 30, rows)),
        "span": pa.array(span),
        "granules": pa.array((span >> 17).astype(np.int32)),
    }
    order = np.lexsort((ends[1], ends[0]))
    arrays = [
        columns[field.name].take(order) if field.name in columns else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write_flows(
    directory: Path,
    sensor: str,
    number: int,
    rng: np.random.Generator,
    rows: int,
    begin_us: int = T0_US,
    length_us: int = 60_000_000,
    changes: dict[str, Any] | None = None,
) -> str:
    """Writes the files of a segment, one a day, the first last. Returns its stem.

    `changes` are made to its account.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stem = stem_of(number, begin_us)
    table = rows_of(rng, sensor, stem, (begin_us, begin_us + length_us), rows)
    days = np.asarray(table["start"].cast(pa.int64())) // DAY_US
    parts = [table.filter(pa.array(days == day)) for day in sorted(set(days.tolist()))] or [table]
    packets = sum(int(np.asarray(table[name]).sum()) for name in ("fwd_packets", "rev_packets"))
    account: dict[str, Any] = {
        "sensor": sensor, "segment": stem, "files": len(parts), "rows": rows,
        "packets_in_rows": packets, "packets": packets, "began_ns": begin_us * 1000,
        "ended_ns": (begin_us + length_us) * 1000, "lost": 0, "unseen": 0, "cutoff": 0,
        "bytes_cutoff": 0, "shed_packets": 0, "shed_bytes": 0,
    } | (changes or {})  # fmt: skip
    for at, part in reversed(list(enumerate(parts))):
        told = {"tapdeck.flows": "1"}
        name = f"{stem}.parquet"
        if at == 0:
            told["tapdeck.segment"] = json.dumps(account)
        else:
            first_us = part["start"].cast(pa.int64())[0].as_py()
            name = f"{stem}-{day_of(first_us)}.parquet"
        path = directory / name
        options: dict[str, Any] = {
            "compression": "zstd",
            "store_schema": False,
            "use_dictionary": [name for name in SCHEMA.names if name not in ENCODINGS],
            "column_encoding": ENCODINGS,
        }
        with pq.ParquetWriter(path, SCHEMA, **options) as writer:
            writer.write_table(part)
            writer.add_key_value_metadata(told)
    return stem
