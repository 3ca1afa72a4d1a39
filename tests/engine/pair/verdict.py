"""Whether the pair routed as the twin did: by its answers, and by what the collector joined."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from pair.servers import Collector
from pair.traffic import Answers, rows, tokens

_PATIENCE = 60.0


@dataclass
class Verdict:
    requests: int = 0
    # Requests whose answers were the twin's, token by token and row by row.
    answers: int = 0
    # Requests whose joined rows were the twin's answer, byte for byte.
    streams: int = 0
    # The same of the twin's own stream.
    twins: int = 0
    rows: int = 0
    first_forwards: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.requests == self.answers == self.streams == self.twins and self.requests > 0 and not self.faults


def judge(collector: Collector, answers: list[Answers]) -> Verdict:
    verdict = Verdict(requests=len(answers))
    for answer in answers:
        request_id = answer.job.request_id
        whole, prompt = rows(answer.twin), len(answer.job.prompt)
        first, second = rows(answer.prefill), rows(answer.decode)
        start = prompt + len(tokens(answer.decode)) - 1 - len(second)
        verdict.first_forwards.append(start)
        joined = np.concatenate([first, second[prompt - start :]])
        same = tokens(answer.decode) == tokens(answer.twin) and joined.shape == whole.shape and (joined == whole).all()
        if same and len(first) == prompt and (first[start:] == second[: prompt - start]).all():
            verdict.answers += 1
        else:
            verdict.faults.append(f"{request_id}: the pair's answers are not the twin's (first forward {start})")
        verdict.rows += len(whole)
        for run in ("default", "twin"):
            fault = stream_fault(collector, run, request_id, whole)
            if fault is not None:
                verdict.faults.append(f"{request_id} in run {run}: {fault}")
            elif run == "default":
                verdict.streams += 1
            else:
                verdict.twins += 1
    return verdict


def stream_fault(collector: Collector, run: str, request_id: str, whole: np.ndarray, choice: int = 0) -> str | None:
    """What is wrong with a request as the collector has it; `None` where nothing is."""
    where = f"run = '{run}' AND request_id = '{request_id}' AND choice = {choice}"
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = collector.sql(f"SELECT * FROM requests WHERE {where}")
        if [request["status"] for request in found] == ["whole"]:
            break
        if time.monotonic() > deadline:
            return f"status {[request['status'] for request in found]}, {[request['rows'] for request in found]} rows"
        time.sleep(0.3)
    findings = collector.sql(f'SELECT "check", detail FROM mismatches WHERE {where}')
    if findings:
        return f"{len(findings)} findings, the first {findings[0]}"
    layers, stored = joined_rows(collector, where)
    if not np.array_equal(stored, whole[:, layers]):
        return f"rows {stored.shape} differ from the answer's {whole.shape}"
    dense = [layer for layer in range(whole.shape[1]) if layer not in layers]
    return "rows of a layer that is not stored" if whole[:, dense].any() else None


def joined_rows(collector: Collector, where: str) -> tuple[list[int], np.ndarray]:
    """Layers with a column, and `[positions, layers, top_k]`."""
    tables = collector.sql("SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'routing\\_%'")
    for name in (table["table_name"] for table in tables):
        found = collector.sql(f'SELECT * FROM "{name}" WHERE {where} ORDER BY position')
        if not found:
            continue
        columns = sorted(key for key in found[0] if key[0] == "l" and key[1:].isdigit())
        dtype = "u1" if "_u8" in name else "<u2"
        data = b"".join(bytes.fromhex(row[column]) for row in found for column in columns)
        if [row["position"] for row in found] != list(range(len(found))):
            return [], np.empty(0)
        return [int(column[1:]) for column in columns], np.frombuffer(data, dtype).reshape(len(found), len(columns), -1)
    return [], np.empty(0)
