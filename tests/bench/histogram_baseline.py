#!/usr/bin/env python3
"""Times DuckDB's histogram of one layer on exploded rows, the layout that suits DuckDB best.

    histogram_baseline.py --positions 10000000
    histogram_baseline.py --data gatescope-data --table routing_48x8_u8 --layer l07

One row per position and slot, narrow types: `position INTEGER, slot UTINYINT, expert UTINYINT`. Two forms, a table of
DuckDB's own and a Parquet file; `SELECT expert, count(*) GROUP BY expert`, warm, best of five; the faster form counts.
The ids come from an imported data folder (the same ids as gatescope reads) or are drawn as `generate.py` draws them.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import generate

BATCH = 1 << 20
REPEATS = 5


def drawn_ids(positions):
    """Batches `[n, top_k]` of one layer's ids, drawn as in a generated file."""
    rng = np.random.default_rng(7)
    pool = generate.draw_pool(rng, layers=1)
    for begin in range(0, positions, 4096):
        yield generate.draw_rows(rng, pool, min(4096, positions - begin))[:, 0]


def imported_ids(folder, table, layer):
    """Batches `[n, top_k]` of one layer's ids out of the live files of a data folder."""
    from deltalake import DeltaTable

    for file in DeltaTable(folder / table).file_uris():
        for batch in pq.ParquetFile(file.removeprefix("file://")).iter_batches(BATCH, columns=[layer]):
            column = batch.column(0)
            top_k = column.type.byte_width
            ids = np.frombuffer(column.buffers()[1], np.uint8, len(column) * top_k, column.offset * top_k)
            yield ids.reshape(-1, top_k)


def explode(connection, batches):
    """Fills the table `exploded`; says how many positions."""
    connection.execute("CREATE TABLE exploded (position INTEGER, slot UTINYINT, expert UTINYINT)")
    positions = 0
    for ids in batches:
        count, top_k = ids.shape
        rows = pa.table(
            {
                "position": np.repeat(np.arange(positions, positions + count, dtype=np.int32), top_k),
                "slot": np.tile(np.arange(top_k, dtype=np.uint8), count),
                "expert": np.ascontiguousarray(ids).reshape(-1),
            }
        )
        connection.execute("INSERT INTO exploded SELECT * FROM rows")
        positions += count
    return positions


def best_of(connection, relation):
    """Seconds of wall and of CPU of the fastest run, after a warm-up; and its answer."""
    query = f"SELECT expert, count(*) FROM {relation} GROUP BY expert"
    answer = sorted(connection.execute(query).fetchall())
    runs = []
    for _ in range(REPEATS):
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        connection.execute(query).fetchall()
        seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        runs.append((seconds, cpu))
    return *min(runs), answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--positions", type=int, help="draw this many")
    source.add_argument("--data", type=Path, help="a data folder of `gatescope import`")
    parser.add_argument("--table", default="routing_48x8_u8")
    parser.add_argument("--layer", default="l07")
    parser.add_argument("--counts", type=Path, help="write the histogram there, as JSON")
    arguments = parser.parse_args()
    if arguments.data:
        batches = imported_ids(arguments.data, arguments.table, arguments.layer)
    else:
        batches = drawn_ids(arguments.positions)
    with tempfile.TemporaryDirectory() as folder:
        connection = duckdb.connect(f"{folder}/exploded.duckdb")
        positions = explode(connection, batches)
        connection.execute("CHECKPOINT")
        parquet = Path(folder) / "exploded.parquet"
        connection.execute(f"COPY exploded TO '{parquet}' (FORMAT parquet, COMPRESSION zstd)")
        native_seconds, native_cpu, answer = best_of(connection, "exploded")
        parquet_seconds, parquet_cpu, same = best_of(connection, f"read_parquet('{parquet}')")
        if answer != same:
            raise SystemExit("the two forms answer differently")
        threads = connection.execute("SELECT current_setting('threads')").fetchone()[0]
    if arguments.counts:
        arguments.counts.write_text(json.dumps(dict(answer)))
    result = {
        "positions": positions,
        "ids": sum(count for _, count in answer),
        "threads": threads,
        "native_seconds": round(native_seconds, 4),
        "native_cpu_seconds": round(native_cpu, 4),
        "parquet_seconds": round(parquet_seconds, 4),
        "parquet_cpu_seconds": round(parquet_cpu, 4),
        "best_seconds": round(min(native_seconds, parquet_seconds), 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
