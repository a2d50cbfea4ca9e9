"""Every reader of Arrow gets the same columns and values."""

from __future__ import annotations

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from polars._typing import IpcCompression

import tapdeck
from conftest import Program, write_pcap

WORDS = pa.dictionary(pa.int32(), pa.string())
PACKETS = pa.schema(
    [
        pa.field("time", pa.timestamp("ns", "UTC"), nullable=False),
        pa.field("interface", WORDS, nullable=False),
        pa.field("link_type", pa.uint16(), nullable=False),
        pa.field("direction", pa.dictionary(pa.int8(), pa.string())),
        pa.field("original_length", pa.uint32(), nullable=False),
        pa.field("dropped", pa.uint64(), nullable=False),
        pa.field("shed", pa.uint32(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)


def test_columns_of_packets_are_as_described(store: Path) -> None:
    answer = tapdeck.open(store).query("vlan and tcp")
    assert pa.schema(answer) == PACKETS
    reader = answer.to_reader()
    assert reader.schema == PACKETS
    sizes = [(batch.num_rows, batch.nbytes) for batch in reader]
    assert sum(rows for rows, _ in sizes) > 1000
    assert max(rows for rows, _ in sizes) <= 65536


def test_a_batch_is_bounded(store: Path) -> None:
    batches = list(tapdeck.open(store).query().to_reader())
    assert sum(batch.num_rows for batch in batches) == 60000 and len(batches) >= 5
    assert max(batch.nbytes for batch in batches) < 6 << 20


def test_readers_agree_on_packets(store: Path) -> None:
    def ask() -> tapdeck.Packets:
        return tapdeck.open(store).query("vlan and tcp")

    expected = ask().to_arrow()
    assert expected.num_rows > 1000
    assert pa.table(ask()) == expected
    polars = ask().to_polars()
    assert isinstance(polars, pl.DataFrame) and polars.height == expected.num_rows
    pandas = ask().to_pandas()
    assert isinstance(pandas, pd.DataFrame) and len(pandas) == expected.num_rows
    with duckdb.connect() as connection:
        connection.register("packets", ask())
        duck = connection.table("packets").to_arrow_table()
    for name in PACKETS.names:
        values = expected[name].cast("int64") if name == "time" else expected[name]
        values = values.to_pylist()
        of_polars, of_pandas, of_duck = polars[name], pandas[name], duck[name]
        if name == "time":
            of_polars, of_pandas = of_polars.cast(pl.Int64), of_pandas.astype("int64")
            of_duck = of_duck.cast("int64")
        assert of_duck.to_pylist() == values
        assert of_polars.to_list() == values
        assert of_pandas.tolist() == values


def test_pandas_has_types_to_work_with(store: Path) -> None:
    packets = tapdeck.open(store).query().to_pandas()
    assert packets["time"].dtype == "datetime64[ns, UTC]"
    assert packets["original_length"].dtype == np.uint32
    assert isinstance(packets["interface"].dtype, pd.CategoricalDtype)
    assert packets["data"].dtype == pd.ArrowDtype(pa.binary())
    a_second = packets.set_index("time")["original_length"].resample("1s").sum()
    assert a_second.sum() == packets["original_length"].sum()
    flows = tapdeck.open(store).flows().to_pandas()
    assert flows["src_port"].dtype == "Int32" and flows["fwd_packets"].dtype == "Int64"


def test_rows_of_flows_are_those_of_the_program(
    store: Path, program: Program, tmp_path: Path
) -> None:
    for expression in ([], ["vlan and udp"]):
        out = tmp_path / ("of" + "-".join(expression).replace(" ", ""))
        program.run("flows", "--dir", store, "-o", out, "--sensor", "lab", *expression)
        files = sorted(out.glob("*.parquet"))
        assert len(files) > 5
        expected = pa.concat_tables([pq.ParquetFile(file).read() for file in files])

        def ask(words: list[str] = expression) -> tapdeck.Flows:
            return tapdeck.open(store).flows(*words, sensor="lab")

        flows = ask()
        table = flows.to_arrow()
        assert table.schema == expected.schema.remove_metadata()
        assert table == expected.replace_schema_metadata(None)
        assert flows.complete
        assert ask().to_polars().to_dicts() == table.to_pylist()
        with duckdb.connect() as connection:
            connection.register("rows", ask())
            total = connection.sql("select sum(fwd_packets) from rows").fetchall()
        assert total == [(sum(table["fwd_packets"].to_pylist()),)]


def test_rows_of_each_engine_lead_to_their_packets(
    store: Path, program: Program, tmp_path: Path
) -> None:
    rows = tapdeck.open(store).flows().to_arrow()
    frame = pl.DataFrame(rows)
    forms: dict[str, pa.Table] = {
        "pyarrow": rows,
        "pandas": pa.Table.from_pandas(rows.to_pandas()),
        "DuckDB": duckdb.from_arrow(rows).order("random()").to_arrow_table(),
    }
    written: dict[str, bytes] = {}
    for name, table in forms.items():
        with pa.BufferOutputStream() as sink:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=100)
            written[f"{name}, a stream"] = sink.getvalue().to_pybytes()
        for compression in ["uncompressed", "lz4", "zstd"]:
            with pa.BufferOutputStream() as sink:
                feather.write_feather(table, sink, compression=compression)
                written[f"{name}, {compression}"] = sink.getvalue().to_pybytes()
    for compression in get_args(IpcCompression):
        for level in [None, pl.CompatLevel.oldest()]:
            stream, file = io.BytesIO(), io.BytesIO()
            frame.write_ipc_stream(stream, compression=compression, compat_level=level)
            frame.write_ipc(file, compression=compression, compat_level=level)
            written[f"polars, a stream, {compression}, {level}"] = stream.getvalue()
            written[f"polars, a file, {compression}, {level}"] = file.getvalue()
    assert "double" in {str(field.type) for field in forms["pandas"].schema}
    words = frame.with_columns(pl.col("segment", "sensor", "src_ip").cast(pl.Categorical))
    words.write_ipc_stream(stream := io.BytesIO())
    written["polars, words"] = stream.getvalue()

    def fetch(name: str, rows: bytes) -> bytes:
        # A file is sought in.
        path: str | Path = tmp_path / "rows" if rows.startswith(b"ARROW1") else "-"
        (tmp_path / "rows").write_bytes(rows)
        words: list[str | Path] = ["--flows", path, "--store", store, "-w", tmp_path / "to"]
        command = [program.path, "fetch", *words]
        done = subprocess.run(command, input=rows, capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b""), name
        packets = (tmp_path / "to").read_bytes()
        return packets[int.from_bytes(packets[4:8], "little") :]

    expected = fetch("JSON", frame.drop("runs").write_ndjson().encode())
    assert len(expected) > 1 << 20
    for name, data in written.items():
        assert fetch(name, data) == expected, name


def test_rows_have_every_packet_of_a_span(store: Path) -> None:
    times = tapdeck.open(store).query().to_arrow()["time"].cast("int64").to_pylist()
    after, before = times[10000], times[50000]
    inside = sum(after <= ns < before for ns in times)
    table = tapdeck.open(store).flows(after=after, before=before).to_arrow()
    assert sum(table["fwd_packets"].to_pylist() + table["rev_packets"].to_pylist()) == inside


def test_flows_of_capture_files_have_every_packet(store: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.pcap"
    packets = tapdeck.open(store).query("vlan and udp")
    write_pcap(foreign, ((packet.time_ns, packet.data) for packet in packets))
    flows = tapdeck.open(foreign).flows().to_pandas()
    expected = tapdeck.open(store).flows("vlan and udp").to_pandas()
    ends = ["src_ip", "dst_ip", "src_port", "dst_port", "proto", "vlan"]
    counts = ["fwd_packets", "rev_packets", "fwd_bytes", "rev_bytes"]
    whole = expected.groupby(ends)[counts].sum()
    pd.testing.assert_frame_equal(flows.set_index(ends)[counts].sort_index(), whole.sort_index())
    assert set(flows["segment"]) == {str(foreign)} and set(flows["span"]) == {0}


def test_a_stream_on_another_thread_is_whole(store: Path) -> None:
    reader = tapdeck.open(store).query().to_reader()
    with ThreadPoolExecutor(1) as pool:
        table = pool.submit(reader.read_all).result()
    assert table.num_rows == 60000


def test_who_lacks_a_library_is_told_which(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"pip install polars"):
        tapdeck.open(store).query().to_polars()
