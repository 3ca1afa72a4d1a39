#!/usr/bin/env python3
"""Measures the live collector against what a user would run instead; started by `tests/bench/run-live`."""

import argparse
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
FLEET = ["--prefill", "2", "--decode", "2", "--shape", "48x8", "--experts", "128", "--seed", "1", "--quiet"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port} after {seconds} s")


@contextmanager
def running(command, *ports):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in ports:
            wait_for(port)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rss_mib(process):
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


class Bench:
    def __init__(self, options, folder):
        self.gatescope, self.seconds, self.folder = options.gatescope, options.seconds, Path(folder)
        self.rotel = options.rotel

    def simulate(self, port, rate=0):
        command = [self.gatescope, "simulate", "--collector", f"grpc://127.0.0.1:{port}", *FLEET]
        command += ["--rate", str(rate), "--duration", f"{self.seconds}s", "--format", "json", "--drain", "120s"]
        return json.loads(machine.run(command).stdout)

    @contextmanager
    def collector(self):
        data, http_port, flight = self.folder / "data", free_port(), free_port()
        shutil.rmtree(data, ignore_errors=True)
        command = [self.gatescope, "serve", "--data", data, "--http", f"127.0.0.1:{http_port}"]
        command += ["--flight", f"127.0.0.1:{flight}"]
        with running(command, http_port, flight) as process:
            yield process, http_port, flight

    def sql(self, port, query, connection=None):
        connection = connection or http.client.HTTPConnection("127.0.0.1", port)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        connection.request("POST", "/api/v1/sql", json.dumps({"query": query}), headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{query}: HTTP {answer.status} {body.decode(errors='replace')}")
        return json.loads(body)

    def acks_within(self, port, bound):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/metrics")
        total = below = 0
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith("gatescope_ack_duration_seconds_count"):
                total += float(line.rsplit(" ", 1)[1])
            if line.startswith("gatescope_ack_duration_seconds_bucket") and f'le="{bound}"' in line:
                below += float(line.rsplit(" ", 1)[1])
        return below / total if total else float("nan")

    def gatescope_side(self, rate=0, point_queries=False):
        with self.collector() as (process, port, flight):
            times = []
            stop = threading.Event()
            asking = threading.Thread(target=self.ask, args=(port, stop, times))
            if point_queries:
                asking.start()
            summary = self.simulate(flight, rate)
            stop.set()
            if point_queries:
                asking.join()
            until = time.monotonic() + 60
            while time.monotonic() < until:
                rows = self.sql(port, "SELECT count(*) AS requests, sum(rows) AS stored FROM requests WHERE status = 'whole'")
                if rows[0]["stored"] == summary["expected_rows"]:
                    break
                time.sleep(0.5)
            else:
                raise SystemExit(f"{rows[0]['stored']} rows are whole, expected {summary['expected_rows']}")
            return {
                "positions_per_second": summary["positions_per_second"],
                "acknowledged_within_50_ms": self.acks_within(port, "0.05"),
                "peak_rss_mib": rss_mib(process),
                "point_query_ms": sorted(times),
            }

    def ask(self, port, stop, times):
        """Queries one request that has just finished, again and again."""
        connection = http.client.HTTPConnection("127.0.0.1", port)
        newest = "SELECT request_id FROM requests WHERE status = 'whole' AND closed_at > now() - INTERVAL '2 seconds' LIMIT 1"
        while not stop.wait(0.1):
            found = self.sql(port, newest, connection)
            if not found:
                continue
            begun = time.perf_counter()
            self.sql(port, f"SELECT count(*) FROM routing('{found[0]['request_id']}')", connection)
            times.append((time.perf_counter() - begun) * 1e3)

    def pyarrow_side(self):
        port, out = free_port(), self.folder / "flight"
        shutil.rmtree(out, ignore_errors=True)
        with running([sys.executable, HERE / "flight_baseline.py", "--port", str(port), "--out", out], port):
            return self.simulate(port)

    def otlp_side(self):
        port, grpc = free_port(), free_port()
        command = [self.rotel, "start", "--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
        with running([*command, "--exporter", "blackhole"], port):
            sender = [sys.executable, HERE / "otlp_baseline.py", "--port", str(port), "--seconds", str(self.seconds)]
            return json.loads(machine.run(sender).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gatescope", type=Path, required=True)
    parser.add_argument("--rotel", required=True)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=None, help="where data goes: its disk is the one measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print("\n".join(machine.describe(folder)))
        bench = Bench(options, folder)
        most = bench.gatescope_side()
        steady = bench.gatescope_side(rate=int(0.7 * most["positions_per_second"]), point_queries=True)
        flight, otlp = bench.pyarrow_side(), bench.otlp_side()
    rate = most["positions_per_second"]
    times = steady["point_query_ms"]
    p95 = f"{times[int(len(times) * 0.95)]:.0f} ms ({len(times)} queries)" if times else "no request finished in time"
    lines = [
        f"gatescope: {rate:,.0f} positions/s acknowledged, joined and stored; peak {most['peak_rss_mib']:.0f} MiB",
        f"  at 70 %: {steady['acknowledged_within_50_ms']:.1%} of acknowledgements within 50 ms; one request that has just "
        f"finished, 95th percentile {p95}; peak {steady['peak_rss_mib']:.0f} MiB",
        f"pyarrow Flight + ParquetWriter: {flight['positions_per_second']:,.0f} positions/s, nothing synced, nothing joined: "
        f"{rate / flight['positions_per_second']:.1f}x",
        f"OTLP logs into rotel, which drops them: {otlp['positions_per_second']:,.0f} positions/s: "
        f"{rate / otlp['positions_per_second']:.1f}x",
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
