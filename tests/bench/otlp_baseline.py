#!/usr/bin/env python3
"""Sends rows as OTLP logs, one record per position, as fast as the other side answers.

    otlp_baseline.py --port PORT --seconds 10 [--senders 2]

A record's body is the position's 384 ids (48 layers x top-8) as bytes; its attributes are run, request id, role, instance and
position. The requests are serialised before the clock starts, so that the sender costs next to nothing.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import time

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

RECORDS = 1000
ROW_BYTES = 48 * 8


def payload(request):
    message = ExportLogsServiceRequest()
    scope = message.resource_logs.add().scope_logs.add()
    for position in range(RECORDS):
        record = scope.log_records.add()
        record.time_unix_nano = time.time_ns()
        record.body.bytes_value = bytes(byte & 127 for byte in os.urandom(ROW_BYTES))
        texts = {"run": "default", "request_id": f"request-{request}", "role": "decode", "instance": "d0"}
        for key, text in texts.items():
            attribute = record.attributes.add()
            attribute.key, attribute.value.string_value = key, text
        attribute = record.attributes.add()
        attribute.key, attribute.value.int_value = "position", position
    return message.SerializeToString()


def send(port, seconds, sent):
    payloads = [payload(request) for request in range(8)]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        connection.request("POST", "/v1/logs", payloads[count % 8], {"Content-Type": "application/x-protobuf"})
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            count += 1
        elif answer.status not in (429, 503):
            raise SystemExit(f"OTLP: HTTP {answer.status}")
    sent.put(count * RECORDS / (time.perf_counter() - begun))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--senders", type=int, default=2)
    options = parser.parse_args()
    sent = multiprocessing.Queue()
    senders = [
        multiprocessing.Process(target=send, args=(options.port, options.seconds, sent)) for _ in range(options.senders)
    ]
    for sender in senders:
        sender.start()
    rates = [sent.get() for _ in senders]
    for sender in senders:
        sender.join()
    print(json.dumps({"positions_per_second": sum(rates)}))


if __name__ == "__main__":
    main()
