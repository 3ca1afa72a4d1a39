#!/usr/bin/env python3
"""Imports recorded responses of a prefill/decode pair with json, base64, numpy and pyarrow.

    import_baseline.py pair.jsonl --out DIR --layout list|columns

What a user who knows these libraries would write: read line by line, decode the `.npy`, keep a prefill until its decode
comes, place the decode's rows from the end, compare the overlap, see that the request is whole, write zstd Parquet in
row groups and count experts per layer. Memory is bounded by the requests in flight and one row group. `list` keeps a
position's ids in one fixed-size list, which is what numpy's layout suggests; `columns` is the best layout known: one
fixed-size binary column per layer, without dictionaries. No value is checked (`gatescope import` checks every id).
"""

import argparse
import base64
import io
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 65_536


class RoutingWriter:
    """Joined rows, in row groups, to one Parquet file; and the experts' counts of each layer."""

    def __init__(self, path, layout):
        self.path, self.layout = path, layout
        self.writer, self.counts = None, None
        self.requests, self.rows, self.buffered = [], [], 0

    def add(self, request_id, rows):
        self.requests.append(request_id)
        self.rows.append(rows)
        self.buffered += len(rows)
        if self.buffered >= ROW_GROUP:
            self.flush()

    def flush(self):
        if not self.rows:
            return
        rows = np.concatenate(self.rows)
        positions, layers, top_k = rows.shape
        lengths = [len(part) for part in self.rows]
        columns = {
            "request_id": pa.array(np.repeat(np.array(self.requests, object), lengths)),
            "position": pa.array(np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])),
        }
        if self.layout == "list":
            columns["experts"] = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), layers * top_k)
        else:
            for layer in range(layers):
                data = pa.py_buffer(np.ascontiguousarray(rows[:, layer]))
                columns[f"l{layer:02}"] = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(top_k * rows.itemsize), positions, [None, data]
                )
        table = pa.table(columns)
        if self.writer is None:
            self.writer = pq.ParquetWriter(
                self.path, table.schema, compression="zstd", compression_level=1, use_dictionary=["request_id"]
            )
            self.counts = np.zeros((layers, np.iinfo(rows.dtype).max + 1), np.int64)
        self.writer.write_table(table, row_group_size=ROW_GROUP)
        for layer in range(layers):
            self.counts[layer] += np.bincount(rows[:, layer].reshape(-1), minlength=self.counts.shape[1])
        self.requests, self.rows, self.buffered = [], [], 0

    def close(self):
        self.flush()
        if self.writer is not None:
            self.writer.close()


def decode(record):
    """The rows `[positions, layers, top_k]` of a completions answer, and its token counts."""
    response = record["response"]
    rows = np.load(io.BytesIO(base64.b64decode(response["choices"][0]["routed_experts"])))
    usage = response["usage"]
    return rows, usage["prompt_tokens"], usage["completion_tokens"]


def join(prefill, decoded, prompt, completion):
    """The rows of the whole request; says what is wrong where they are not whole or disagree."""
    expected = prompt + completion - 1
    start = expected - len(decoded)
    if len(prefill) != prompt or not 0 <= start <= prompt:
        raise ValueError(f"{len(prefill)} prefill and {len(decoded)} decode rows for {expected} positions")
    overlap = len(prefill) - start
    differing = (prefill[start:] != decoded[:overlap]).any(axis=(1, 2)).sum()
    if differing:
        raise ValueError(f"{differing} of {overlap} rows differ in the overlap")
    return np.concatenate([prefill, decoded[overlap:]])


def import_file(path, writer):
    waiting, whole = {}, 0
    with path.open("rb") as lines:
        for line in lines:
            record = json.loads(line)
            request_id = record["request_id"]
            rows, prompt, completion = decode(record)
            if record["role"] == "prefill":
                waiting[request_id] = rows
                continue
            try:
                joined = join(waiting.pop(request_id), rows, prompt, completion)
            except (KeyError, ValueError) as problem:
                print(f"{request_id}: {problem!r}", file=sys.stderr)
                continue
            writer.add(request_id, joined)
            whole += 1
    writer.close()
    return whole, len(waiting)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layout", choices=["list", "columns"], required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    writer = RoutingWriter(arguments.out / "routing.parquet", arguments.layout)
    whole, unfinished = import_file(arguments.file, writer)
    np.save(arguments.out / "counts.npy", writer.counts)
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    result = {
        "layout": arguments.layout,
        "whole": whole,
        "unfinished": unfinished,
        "input_bytes": arguments.file.stat().st_size,
        "parquet_bytes": (arguments.out / "routing.parquet").stat().st_size,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "peak_rss_mib": used.ru_maxrss // 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
