#!/usr/bin/env python3
"""Other readers of the tables see the ids that the engines sent.

    test_readers.py --gatescope target/debug/gatescope

Imports recorded responses of prefill/decode pairs and reads the `routing_*` tables with DuckDB and pyarrow (the Parquet
files) and with delta-rs and Polars (the Delta log). Each must give, id for id, what numpy decodes from the answers of
the colocated twin, which needed no join; for generated responses, what the Python import of the benchmarks gives.
"""

import argparse
import base64
import io
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import deltalake
import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq

TESTS = Path(__file__).resolve().parent.parent
FIXTURES = TESTS / "fixtures" / "vllm-0.31"
sys.path.insert(0, str(TESTS / "bench"))

import generate  # noqa: E402
import import_baseline  # noqa: E402

options = argparse.Namespace(gatescope=None)


class RoutingTable:
    """A `routing_*` table: its place, its live files and what its name says of a row."""

    def __init__(self, path):
        name = re.fullmatch(r"routing_(\d+)x(\d+)_(u8|u16)(?:_dense[\d_-]+)?", path.name)
        assert name, f"{path.name} is not the name of a routing table"
        self.path = path
        self.layers, self.top_k = int(name[1]), int(name[2])
        self.dtype = np.dtype({"u8": "<u1", "u16": "<u2"}[name[3]])
        self.files = [uri.removeprefix("file://") for uri in deltalake.DeltaTable(path).file_uris()]

    def requests(self, columns, values):
        """Rows `[positions, layers, top_k]` by request, out of columns in any row order; dense layers stay 0."""
        layers = [name for name in columns if re.fullmatch(r"l\d{2,}", name)]
        found = {}
        for row in values:
            row = dict(zip(columns, row, strict=True))
            assert (row["run"], row["choice"]) == ("default", 0)
            ids = np.zeros((self.layers, self.top_k), self.dtype)
            for layer in layers:
                ids[int(layer[1:])] = np.frombuffer(row[layer], self.dtype)
            positions = found.setdefault(row["request_id"], {})
            assert row["position"] not in positions, f"{row['request_id']}: position {row['position']} twice"
            positions[row["position"]] = ids
        return {request: self.in_order(positions) for request, positions in found.items()}

    @staticmethod
    def in_order(positions):
        assert sorted(positions) == list(range(len(positions))), "positions are not 0, 1, 2, ..."
        return np.stack([positions[position] for position in sorted(positions)])


def read_with_duckdb(table):
    relation = duckdb.read_parquet(table.files)
    return table.requests(relation.columns, relation.fetchall())


def from_arrow(table, data):
    columns = [column.to_pylist() for column in data.columns]
    return table.requests(data.column_names, zip(*columns, strict=True))


def read_with_pyarrow(table):
    data = pa.concat_tables([pq.read_table(file, partitioning=None) for file in table.files])
    for field in data.schema:
        if re.fullmatch(r"l\d{2,}", field.name):
            width = table.top_k * table.dtype.itemsize
            assert field.type == pa.binary(width), f"{field.name}: {field.type}, expected {width} fixed bytes"
    return from_arrow(table, data)


def read_with_delta_rs(table):
    return from_arrow(table, deltalake.DeltaTable(table.path).to_pyarrow_table())


def read_with_polars(table):
    data = polars.scan_delta(str(table.path)).collect()
    return table.requests(data.columns, data.iter_rows())


READERS = {
    "duckdb": read_with_duckdb,
    "pyarrow": read_with_pyarrow,
    "delta_rs": read_with_delta_rs,
    "polars": read_with_polars,
}


def import_responses(file, data):
    """Runs `gatescope import`; returns the one routing table that it made."""
    command = [options.gatescope, "import", file, "--data", data]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    tables = sorted(data.glob("routing_*"))
    assert len(tables) == 1, f"expected one routing table, found {[table.name for table in tables]}"
    return RoutingTable(tables[0])


def answered_by_twin(name):
    """Rows `[positions, layers, top_k]` by request, out of the answers of the colocated twin."""
    rows = {}
    for line in (FIXTURES / f"{name}.colocated.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        payload = record["response"]["choices"][0]["routed_experts"]
        rows[record["request_id"]] = np.load(io.BytesIO(base64.b64decode(payload)), allow_pickle=False)
    return rows


class SameIds:
    """One table, every reader; the classes below say which."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.table, cls.expected = cls.make(Path(cls.folder.name))

    def assert_same_ids(self, found):
        self.assertGreater(len(self.expected), 0)
        self.assertEqual(found.keys(), self.expected.keys())
        for request, expected in self.expected.items():
            self.assertEqual((found[request].shape, found[request].dtype), (expected.shape, expected.dtype), request)
            differing = np.argwhere(found[request] != expected)
            if len(differing):
                position, layer, slot = map(int, differing[0])
                self.fail(f"{request}: {len(differing)} ids differ, first at {position=} {layer=} {slot=}")

    def test_the_layer_columns_are_the_layers_that_have_a_gate(self):
        rows = np.concatenate(list(self.expected.values()))
        gates = [f"l{layer:02}" for layer in range(rows.shape[1]) if rows[:, layer].any()]
        columns = [field.name for field in deltalake.DeltaTable(self.table.path).schema().fields]
        self.assertEqual([name for name in columns if re.fullmatch(r"l\d{2,}", name)], gates)


def reader_test(reader):
    def test(self):
        self.assert_same_ids(reader(self.table))

    return test


for reader_name, read in READERS.items():
    setattr(SameIds, f"test_{reader_name}_reads_the_ids_that_the_engine_sent", reader_test(read))


class Recorded(SameIds):
    @classmethod
    def make(cls, folder):
        table = import_responses(FIXTURES / f"{cls.fixture}.pd.jsonl", folder / "data")
        return table, answered_by_twin(cls.fixture)


class Pair(Recorded, unittest.TestCase):
    fixture = "pair"


class PrefixCacheHits(Recorded, unittest.TestCase):
    fixture = "prefix"


class WideIds(Recorded, unittest.TestCase):
    fixture = "wide"


class DenseLayer(Recorded, unittest.TestCase):
    fixture = "dense"


class Merged(Recorded, unittest.TestCase):
    """Several imports whose files are merged into one."""

    fixture = "pair"

    @classmethod
    def make(cls, folder):
        lines = (FIXTURES / f"{cls.fixture}.pd.jsonl").read_text().splitlines(keepends=True)
        for start in range(0, len(lines), 8):
            part = folder / "part.jsonl"
            part.write_text("".join(lines[start : start + 8]))
            several = import_responses(part, folder / "data")
        assert len(several.files) > 1
        vacuum = [options.gatescope, "vacuum", "--compact", "--data", folder / "data", "--format", "json"]
        merged = json.loads(subprocess.run(vacuum, check=True, stdout=subprocess.PIPE).stdout)["merged"]
        assert merged["into"] > 0, merged
        table = RoutingTable(several.path)
        assert len(table.files) == 1, table.files
        return table, answered_by_twin(cls.fixture)


class Generated(SameIds, unittest.TestCase):
    """The benchmark's own data: both imports of it must agree, or their times compare nothing."""

    @classmethod
    def make(cls, folder):
        responses = folder / "pair.jsonl"
        with responses.open("wb") as out:
            rng = np.random.default_rng(11)
            pool = generate.draw_pool(rng, rows=1024)
            for request, (prompt, completion) in enumerate([(1, 1), (1, 2), (130, 1), (97, 200)]):
                out.writelines(generate.answers(rng, pool, request, prompt, completion))
        joined = {}

        class Collect:
            def add(self, request_id, rows):
                joined[request_id] = rows

            def close(self):
                pass

        import_baseline.import_file(responses, Collect())
        return import_responses(responses, folder / "data"), joined


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gatescope", type=Path, required=True, help="the program to import with")
    options, rest = parser.parse_known_args()
    options.gatescope = options.gatescope.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
