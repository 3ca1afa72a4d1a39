#!/usr/bin/env python3
"""All servers of queries give the same answers and refuse the same statements.

    test_servers.py --gatescope target/debug/gatescope

Imports recorded responses of a prefill/decode pair, serves them, and asks the same questions through psql, ADBC
(Flight SQL), HTTP and `gatescope sql`. Then come the questions that tools ask of a Postgres server, and statements that
must not work anywhere: each is refused, and the server answers afterwards.
"""

import argparse
import csv
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight
import psycopg
import sqlalchemy

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "vllm-0.31" / "pair.pd.jsonl"
PATIENCE = 60
options = argparse.Namespace(gatescope=None)

QUESTIONS = [
    "SELECT status, count(*) AS requests, sum(rows) AS rows FROM requests GROUP BY status ORDER BY status",
    "SELECT request_id, prompt_tokens, completion_tokens, rows FROM requests ORDER BY request_id",
    "SELECT run, count(DISTINCT request_id) AS requests FROM requests GROUP BY run",
    "SELECT prefill_instance IS NOT NULL AS prefilled, max(first_forward) AS first FROM requests GROUP BY 1",
    "SELECT layer, expert, sum(tokens) AS tokens FROM expert_load GROUP BY layer, expert ORDER BY layer, expert",
    "SELECT role, phase, sum(tokens) AS tokens FROM expert_load GROUP BY role, phase ORDER BY role, phase",
    "SELECT layer, count(*) AS slots, min(expert) AS low, max(expert) AS high FROM experts GROUP BY layer ORDER BY layer",
    "SELECT expert, count(*) AS n FROM experts WHERE layer = 2 AND phase = 'completion' GROUP BY expert ORDER BY expert",
    "SELECT position, layer, slot, expert FROM experts WHERE request_id = (SELECT min(request_id) FROM requests)"
    " AND position < 3 ORDER BY position, layer, slot",
    "SELECT count(*) AS findings FROM mismatches",
    "SELECT role, count(*) AS spans, sum(rows) AS rows FROM captures GROUP BY role ORDER BY role",
    "SELECT request_id, row_number() OVER (ORDER BY rows, request_id) AS place FROM requests ORDER BY place",
    "SELECT approx_distinct(request_id) AS about FROM requests",
    "WITH hot AS (SELECT layer, expert, sum(tokens) AS tokens FROM expert_load GROUP BY 1, 2) "
    "SELECT layer, max(tokens) AS tokens FROM hot GROUP BY layer ORDER BY layer",
    "SELECT sum(overlap_rows) AS positions, sum(mismatched_rows) AS differ FROM overlap",
    "SELECT sum(requests) AS requests, sum(mismatched_rows) AS differ FROM mismatch_rate",
    "SELECT layer, sum(tokens) AS tokens FROM layer_load GROUP BY layer ORDER BY layer",
    "SELECT layer, tokens, experts, hottest, dead FROM balance() ORDER BY layer",
    "SELECT layer, phase, rank_max, hottest_rank FROM balance('phase', 4) ORDER BY layer, phase",
    "SELECT layer, rank, sum(tokens) AS tokens FROM rank_load(4) GROUP BY layer, rank ORDER BY layer, rank",
    "SELECT column_name, comment FROM columns WHERE table_name = 'requests' ORDER BY position",
]

DEEP = 200_000
FORBIDDEN = [
    # files and addresses
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'file:///etc/passwd'",
    "SELECT * FROM \"/etc/passwd\"",
    "SELECT * FROM 'https://example.com/x.parquet'",
    "SELECT * FROM 's3://bucket/key.parquet'",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM parquet_metadata('/etc/passwd')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_binary_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT dblink('host=127.0.0.1', 'SELECT 1')",
    "CREATE EXTERNAL TABLE stolen STORED AS CSV LOCATION '/etc/passwd'",
    "COPY requests TO '/tmp/gatescope-stolen.csv'",
    "COPY (SELECT 1) TO '/tmp/gatescope-stolen.parquet' STORED AS PARQUET",
    "COPY requests TO PROGRAM 'cat > /tmp/gatescope-stolen.csv'",
    "COPY requests FROM PROGRAM 'id'",
    "COPY requests FROM '/etc/passwd'",
    # writes
    "INSERT INTO requests (run) VALUES ('x')",
    "UPDATE requests SET run = 'x'",
    "DELETE FROM requests",
    "TRUNCATE requests",
    "DROP TABLE requests",
    "DROP VIEW experts",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE VIEW mine AS SELECT 1",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION mine() RETURNS INT RETURN 1",
    "ALTER TABLE requests ADD COLUMN x INT",
    "EXPLAIN ANALYZE INSERT INTO requests (run) VALUES ('x')",
    "WITH gone AS (DELETE FROM requests RETURNING *) SELECT * FROM gone",
    # settings and internals
    "SET datafusion.execution.batch_size = 1",
    "SET datafusion.runtime.temp_directory = '/etc'",
    "SET ROLE postgres",
    "SELECT * FROM expert_load_increments",
    "PREPARE p AS SELECT 1",
    # too much
    "SELECT " + "(" * DEEP + "1" + ")" * DEEP,
    "SELECT 1" + "+1" * DEEP,
    "SELECT 1" + "::int" * DEEP,
    "SELECT 1 WHERE " + "NOT " * DEEP + "true",
    "SELECT " + "abs(" * 900 + "1" + ")" * 900,
    "SELECT 1 FROM requests" + ", (SELECT 1 FROM requests)" * 100,
    "SELECT length(repeat('x', 1000000000))",
    "SELECT repeat(repeat('x', 10000), 1000000)",
    "SELECT lpad('x', 2000000000)",
    "SELECT array_repeat(1, 1000000000)",
    "SELECT range(1, 10000000000)",
    "SELECT regexp_like('aaa', '((a{100}){100}){100}')",
    "SELECT count(*) FROM experts a, experts b, experts c, experts d",
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "SELECT array_agg(a.request_id || b.request_id) FROM experts a CROSS JOIN experts b",
]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Server:
    """A server on a folder with the recorded pair."""

    def __init__(self, data):
        self.data = data
        subprocess.run([options.gatescope, "import", FIXTURE, "--data", data], check=True, capture_output=True)
        self.http, self.flight, self.postgres = free_port(), free_port(), free_port()
        addresses = {"http": self.http, "flight": self.flight, "postgres": self.postgres}
        flags = [part for name, port in addresses.items() for part in (f"--{name}", f"127.0.0.1:{port}")]
        self.process = subprocess.Popen(
            [options.gatescope, "serve", "--data", data, "--query-time", "4s", "--query-memory", "128", *flags],
            stderr=subprocess.DEVNULL,
        )
        begun = time.monotonic()
        while not self.ready():
            assert time.monotonic() - begun < PATIENCE, "the server is not ready"
            time.sleep(0.1)
        self.adbc = flight.connect(f"grpc://127.0.0.1:{self.flight}", autocommit=True)

    def ready(self):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz").status == 200
        except OSError:
            return False

    def stop(self):
        self.adbc.close()
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def by_http(self, sql):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/api/v1/sql",
            json.dumps({"query": sql}).encode(),
            {"content-type": "application/json", "accept": "text/csv"},
        )
        try:
            return table(urllib.request.urlopen(request, timeout=PATIENCE).read().decode())
        except urllib.error.HTTPError as error:
            raise Refused(json.loads(error.read())["detail"]) from None

    def by_psql(self, sql):
        address = ["-h", "127.0.0.1", "-p", str(self.postgres), "-U", "reader", "gatescope"]
        return answered(["psql", "--no-psqlrc", "--csv", "--set", "ON_ERROR_STOP=1", *address], sql + ";")

    def by_psycopg(self, sql):
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            try:
                cursor = connection.execute(sql.replace("%", "%%"), prepare=True)
                return [[plain(value) for value in row] for row in cursor.fetchall()]
            except psycopg.Error as error:
                raise Refused(str(error)) from None

    def by_adbc(self, sql):
        with self.adbc.cursor() as cursor:
            try:
                cursor.execute(sql)
                return [[plain(value) for value in row] for row in cursor.fetchall()]
            except flight.Error as error:
                raise Refused(str(error)) from None

    def by_command(self, sql):
        return answered([options.gatescope, "sql", "--data", self.data, "--format", "csv", "-"], sql)

    def dsn(self):
        return f"host=127.0.0.1 port={self.postgres} user=reader dbname=gatescope"


class Refused(Exception):
    """A statement that has no answer."""


def answered(command, sql):
    """The rows that a program prints for a statement."""
    run = subprocess.run(command, input=sql, capture_output=True, text=True, timeout=PATIENCE)
    if run.returncode:
        raise Refused(run.stderr)
    return table(run.stdout)


def table(text):
    return [[plain(value) for value in row] for row in list(csv.reader(io.StringIO(text)))[1:]]


def plain(value):
    """A value as text, however a client shows it."""
    if value is None:
        return ""
    text = str(value)
    return {"True": "true", "False": "false", "t": "true", "f": "false"}.get(text, text)


class Servers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(Path(cls.folder.name) / "data")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.folder.cleanup()
        assert code == 0, f"the server ended with {code}"

    def test_the_same_questions_have_the_same_answers_everywhere(self):
        for question in QUESTIONS:
            with self.subTest(question):
                expected = self.server.by_command(question)
                self.assertTrue(expected, "an answer with rows")
                for ask in (self.server.by_http, self.server.by_psql, self.server.by_psycopg, self.server.by_adbc):
                    self.assertEqual(ask(question), expected, ask.__name__)

    def test_what_must_not_work_is_refused_and_the_server_stays_well(self):
        self.assertGreaterEqual(len(FORBIDDEN), 40)
        for statement in FORBIDDEN:
            with self.subTest(statement[:70]):
                for ask in (self.server.by_http, self.server.by_psql, self.server.by_adbc):
                    with self.assertRaises(Refused, msg=ask.__name__):
                        ask(statement)
                self.assertIsNone(self.server.process.poll(), "the server is there")
                self.assertEqual(self.server.by_http("SELECT count(*) FROM requests"), [["16"]])
        self.assertFalse(list(Path("/tmp").glob("gatescope-stolen*")))

    def test_psql_describes_what_there_is(self):
        for command, expected in {
            r"\d": "expert_load",
            r"\dt": "requests",
            r"\dv": "experts",
            r"\d requests": "prompt_tokens",
            r"\l": "gatescope",
            r"\dn": "public",
        }.items():
            with self.subTest(command):
                address = ["-h", "127.0.0.1", "-p", str(self.server.postgres), "-U", "reader", "gatescope"]
                run = subprocess.run(["psql", "-c", command, *address], capture_output=True, text=True, timeout=PATIENCE)
                self.assertIn(expected, run.stdout, run.stderr)

    def test_grafana_finds_tables_columns_and_times(self):
        path = (
            "quote_ident(table_schema) IN (\n SELECT\n"
            "  CASE WHEN trim(s[i]) = '\"$user\"' THEN user ELSE trim(s[i]) END\n FROM\n  generate_series(\n"
            "   array_lower(string_to_array(current_setting('search_path'),','),1),\n"
            "   array_upper(string_to_array(current_setting('search_path'),','),1)\n  ) as i,\n"
            "  string_to_array(current_setting('search_path'),',') s\n)"
        )
        between = "BETWEEN '2020-01-01T00:00:00Z' AND '2100-01-01T00:00:00.999Z'"
        queries = {
            "SELECT 1": ["1"],
            "SELECT current_setting('server_version_num')::int/100 as version": ["1600"],
            f"SELECT CASE WHEN {path} THEN quote_ident(table_name) ELSE 'elsewhere' END AS \"table\" "
            "FROM information_schema.tables WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog') "
            f"ORDER BY CASE WHEN {path} THEN 0 ELSE 1 END, 1": ["captures"],
            'SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns WHERE '
            "CASE WHEN array_length(parse_ident('expert_load'),1) = 2 "
            "THEN quote_ident(table_schema) = (parse_ident('expert_load'))[1] ELSE quote_ident(table_name) = 'expert_load' "
            f"AND {path} END": ["minute", "timestamp with time zone"],
            'SELECT floor(extract(epoch from minute)/60)*60 AS "time", role AS metric, sum(tokens) AS tokens '
            f"FROM expert_load WHERE minute {between} GROUP BY 1, 2 ORDER BY 1": None,
            f'SELECT minute AS "time", layer::text AS metric, sum(tokens) FROM expert_load WHERE minute {between} '
            "GROUP BY 1, 2 ORDER BY 1": None,
            "SELECT count(*) FROM requests WHERE extract(epoch from closed_at) >= 1577836800 "
            "AND extract(epoch from closed_at) <= 4102444800": ["16"],
        }
        for query, first in queries.items():
            with self.subTest(query[:70]):
                rows = self.server.by_psycopg(query)
                self.assertTrue(rows)
                if first:
                    self.assertEqual(rows[0], first)
        self.assertEqual(self.server.by_psycopg("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'"), [])

    def test_counts_and_ids_are_whole_numbers_for_postgres(self):
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            cursor = connection.execute(
                "SELECT count(*), sum(tokens), max(layer), approx_distinct(expert), row_number() OVER () "
                "FROM expert_load"
            )
            types = [column.type_display for column in cursor.description]
        self.assertEqual(types, ["int8", "int8", "int4", "int8", "int8"])

    def test_parameters_reach_statements_and_table_functions(self):
        request = self.server.by_http("SELECT min(request_id) FROM requests")[0][0]
        expected = self.server.by_http(f"SELECT count(*) FROM routing('{request}') WHERE layer = 1")
        with psycopg.connect(self.server.dsn()) as connection:
            query = "SELECT count(*) FROM routing(%s) WHERE layer = %s"
            self.assertEqual(connection.execute(query, (request, 1)).fetchone(), (int(expected[0][0]),))
            query = "SELECT request_id FROM requests ORDER BY 1 LIMIT %s"
            self.assertEqual(len(connection.execute(query, (3,)).fetchall()), 3)
        with self.server.adbc.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM routing(?) WHERE layer = ?", (request, 1))
            self.assertEqual(cursor.fetchone(), (int(expected[0][0]),))

    def test_sqlalchemy_and_transactions(self):
        engine = sqlalchemy.create_engine(f"postgresql+psycopg://reader@127.0.0.1:{self.server.postgres}/gatescope")
        with engine.connect() as connection:
            query = sqlalchemy.text("SELECT count(*) FROM requests WHERE run = :run")
            self.assertEqual(connection.execute(query, {"run": "default"}).scalar(), 16)
            connection.rollback()
            with self.assertRaises(sqlalchemy.exc.DBAPIError):
                connection.execute(sqlalchemy.text("DELETE FROM requests"))

    def test_what_is_cancelled_stops(self):
        endless = "SELECT count(*) FROM experts a, experts b, experts c, experts d"
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            connection.execute("SET statement_timeout = '300ms'")
            begun = time.monotonic()
            with self.assertRaises(psycopg.errors.QueryCanceled):
                connection.execute(endless)
            self.assertLess(time.monotonic() - begun, 3)
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            threading.Timer(0.5, connection.cancel).start()
            begun = time.monotonic()
            with self.assertRaises(psycopg.errors.QueryCanceled):
                connection.execute(endless)
            self.assertLess(time.monotonic() - begun, 3)

    def test_adbc_knows_what_there_is(self):
        objects = self.server.adbc.adbc_get_objects(depth="tables").read_all().to_pylist()
        tables = [t["table_name"] for schema in objects[0]["catalog_db_schemas"] for t in schema["db_schema_tables"]]
        self.assertIn("requests", tables)
        self.assertIn("run", self.server.adbc.adbc_get_table_schema("requests").names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gatescope", type=os.path.abspath, required=True)
    options, rest = parser.parse_known_args(namespace=options)
    unittest.main(argv=[sys.argv[0], *rest])
