#!/usr/bin/env python3
"""Runs the benchmarks and prints their table; started by `tests/bench/run`."""

import argparse
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import machine

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- table: written by tests/bench/run --write -->", "<!-- end of the table -->"
TABLE, LAYER = "routing_48x8_u8", 7
GIB = 1 << 30


class Bench:
    """One run of everything: where the parts are, and the rows of the table so far."""

    def __init__(self, gatescope, cache, small):
        self.gatescope, self.cache = gatescope, cache
        self.divisor = 16 if small else 1
        self.rows = []

    def say(self, text):
        print(f"-- {text}", file=sys.stderr, flush=True)

    def python(self, script, *arguments):
        return [sys.executable, HERE / script, *map(str, arguments)]

    def generated(self, name, *limit):
        """A file of recorded responses, made once; read through once, so that both sides find it in memory."""
        file = self.cache / f"{name}.jsonl"
        if not file.exists():
            self.say(f"generating {file.name}")
            subprocess.run(self.python("generate.py", *limit, "--out", file), check=True)
        with file.open("rb") as responses:
            while responses.read(1 << 24):
                pass
        return file

    def import_with_gatescope(self, file, data):
        shutil.rmtree(data, ignore_errors=True)
        return machine.run([self.gatescope, "import", file, "--data", data])

    def import_with_python(self, file, layout):
        out = self.cache / f"python-{layout}"
        shutil.rmtree(out, ignore_errors=True)
        return machine.run(self.python("import_baseline.py", file, "--out", out, "--layout", layout))

    def sql(self, data, query):
        return machine.run([self.gatescope, "sql", query, "--data", data, "--format", "json"])

    def counts(self, data):
        """The histogram of one layer by SQL, and what it cost."""
        run = self.sql(data, f"SELECT expert_counts(l{LAYER:02}) AS counts FROM {TABLE}")
        return json.loads(run.stdout)[0]["counts"], run

    def histogram_in_process(self, data):
        command = ["cargo", "bench", "--locked", "--quiet", "--package", "gatescope-query", "--bench", "histogram"]
        return machine.run(command, {"GATESCOPE_BENCH_DATA": str(data)}).stdout

    def row(self, what, ours, theirs, baseline):
        wall, cpu = theirs[0] / ours[0], theirs[1] / ours[1]
        self.rows.append(
            f"| {what} | {seconds(ours)} | {baseline}: {seconds(theirs)} | **{wall:.1f}x** wall, {cpu:.1f}x CPU |"
        )
        self.say(self.rows[-1])

    def note(self, what, text):
        self.rows.append(f"| {what} | {text} | | |")
        self.say(self.rows[-1])

    def imports(self):
        file = self.generated(f"pair-1GiB-{self.divisor}", "--bytes", GIB // self.divisor)
        data = self.cache / "data-1GiB"
        what = f"`import` of {amount(file)}"
        ours = machine.best(3, lambda: self.import_with_gatescope(file, data))
        for layout in ("columns", "list"):
            theirs = machine.best(2, lambda: self.import_with_python(file, layout))
            self.row(what, cost(ours), cost(theirs), f"Python, layout `{layout}`")
            self.note(f"peak memory of that, Python `{layout}`", f"{theirs.peak_rss_mib:.0f} MiB")
        self.note("peak memory of that, gatescope", f"{ours.peak_rss_mib:.0f} MiB")
        found, _ = self.counts(data)
        expected = np.load(self.cache / "python-columns" / "counts.npy")[LAYER]
        if list(np.trim_zeros(expected, "b")) != list(np.trim_zeros(found, "b")):
            raise SystemExit("the two imports hold other ids: their times compare nothing")
        shutil.rmtree(data)

    def large_import(self):
        file = self.generated(f"pair-4GiB-{self.divisor}", "--bytes", 4 * GIB // self.divisor)
        data = self.cache / "data-4GiB"
        run = self.import_with_gatescope(file, data)
        self.note(f"`import` of {amount(file)}", f"{seconds(cost(run))}, peak {run.peak_rss_mib:.0f} MiB")
        shutil.rmtree(data)

    def histogram(self):
        positions = 10_000_000 // self.divisor
        file = self.generated(f"pair-10M-{self.divisor}", "--positions", positions)
        data = self.cache / "data-10M"
        self.import_with_gatescope(file, data)
        baseline = self.cache / "histogram.json"
        run = machine.run(
            self.python(
                "histogram_baseline.py", "--data", data, "--table", TABLE, "--layer", f"l{LAYER:02}", "--counts", baseline
            )
        )
        duckdb = json.loads(run.stdout)
        self.counts(data)
        runs = [self.counts(data) for _ in range(5)]
        found, ours = min(runs, key=lambda pair: pair[1].seconds)
        expected = {int(expert): count for expert, count in json.loads(baseline.read_text()).items()}
        if expected != {expert: count for expert, count in enumerate(found) if count}:
            raise SystemExit("the two histograms differ: their times compare nothing")
        form = min(("native", "parquet"), key=lambda form: duckdb[f"{form}_seconds"])
        theirs = duckdb[f"{form}_seconds"], duckdb[f"{form}_cpu_seconds"]
        what = f"histogram of one layer, {duckdb['positions']:,} positions"
        named = f"DuckDB in process, {'own table' if form == 'native' else 'Parquet'}"
        inside = json.loads(self.histogram_in_process(data).splitlines()[-1])
        if inside["answer"] != [{"counts": found}]:
            raise SystemExit("the histogram inside the process differs from the command's")
        self.row(f"{what}, in process", (inside["seconds"], inside["cpu_seconds"]), theirs, named)
        self.row(f"{what}, whole process of `gatescope sql`", cost(ours), theirs, named)
        empty = min((self.sql(data, "SELECT 1") for _ in range(5)), key=lambda run: run.seconds)
        self.note("start of the process alone (`SELECT 1`)", seconds(cost(empty)))


def cost(run):
    return run.seconds, run.cpu_seconds


def seconds(pair):
    wall, cpu = pair
    digits = 1 if wall >= 10 else 2 if wall >= 1 else 3
    return f"{wall:.{digits}f} s ({cpu:.{digits}f} s CPU)"


def amount(file):
    return f"{file.stat().st_size / GIB:.2f} GiB"


def versions():
    packages = " · ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "pyarrow", "duckdb"))
    return f"Python {platform.python_version()} · {packages}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gatescope", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.small and arguments.write:
        parser.error("--write: only the full sizes belong into the page")
    bench = Bench(arguments.gatescope.resolve(), arguments.cache, arguments.small)
    about = machine.describe(arguments.cache)
    bench.imports()
    bench.large_import()
    bench.histogram()
    version = machine.run([bench.gatescope, "--version"]).stdout.decode().strip()
    text = "\n".join(
        [
            *(f"- {line}" for line in [*about, f"{version} · {versions()}", "command: `tests/bench/run --write`"]),
            "",
            "| what | gatescope | instead | ratio |",
            "|---|---|---|---|",
            *bench.rows,
        ]
    )
    print(text)
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
