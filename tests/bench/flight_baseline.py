#!/usr/bin/env python3
"""A pyarrow Flight server that writes what it is sent into Parquet files: what a user would run instead of a collector.

    flight_baseline.py --port PORT --out DIR

It takes the messages of the real capture agents and acknowledges each at once. It syncs nothing, joins nothing, checks nothing.
"""

import argparse
import json
import threading
from pathlib import Path

import pyarrow.flight as flight
import pyarrow.parquet as pq


class Server(flight.FlightServerBase):
    def __init__(self, location, out):
        super().__init__(location)
        self.out, self.streams, self.lock = out, 0, threading.Lock()

    def do_put(self, context, descriptor, reader, writer):
        with self.lock:
            self.streams += 1
            path = self.out / f"{self.streams:04}.parquet"
        with pq.ParquetWriter(path, reader.schema, compression="zstd", compression_level=1, use_dictionary=False) as file:
            for chunk in reader:
                message = json.loads(chunk.app_metadata.to_pybytes())
                file.write_batch(chunk.data)
                ack = {"wire": 1, "agent": message["agent"], "boot": message["boot"], "durable": message["seq"]}
                writer.write(json.dumps(ack).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    Server(f"grpc://127.0.0.1:{options.port}", options.out).serve()


if __name__ == "__main__":
    main()
