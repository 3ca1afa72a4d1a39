"""Requests to a pair and its twin."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import random
import urllib.request
import uuid
from dataclasses import dataclass, field

import numpy as np

from pair.servers import Deployment

_VOCABULARY = range(3, 1024)
_TO_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True)
class Job:
    request_id: str
    prompt: list[int]
    completion: int


@dataclass
class Answers:
    job: Job
    prefill: dict
    decode: dict
    twin: dict
    # What was changed in the decode's KV transfer parameters.
    altered: dict = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return len(self.job.prompt) + self.job.completion


@dataclass(frozen=True)
class Mix:
    """Sizes of the requests of a case."""

    requests: int = 8
    concurrency: int = 4
    prompt: tuple[int, int] = (5, 200)
    completion: tuple[int, int] = (2, 12)
    shared: int = 0

    def jobs(self, seed: str) -> list[Job]:
        rng = random.Random(seed)
        prefix = [rng.choice(_VOCABULARY) for _ in range(self.shared)]
        return [
            Job(
                str(uuid.UUID(int=rng.getrandbits(128))),
                prefix + [rng.choice(_VOCABULARY) for _ in range(rng.randint(*self.prompt))],
                rng.randint(*self.completion),
            )
            for _ in range(self.requests)
        ]


def complete(
    port: int,
    job: Job,
    completion: int,
    transfer: dict | None = None,
    timeout: float = 600.0,
    more: dict | None = None,
) -> dict:
    body = {"model": "tiny", "prompt": job.prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    body |= {"max_tokens": completion, **(more or {})}
    if transfer is not None:
        body["kv_transfer_params"] = transfer
    headers = {"content-type": "application/json", "X-Request-Id": job.request_id}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


def ask(deployment: Deployment, job: Job, altered: dict | None = None) -> Answers:
    """Prefill, decode with what it answered, and the twin."""
    engines = deployment.engines
    prefill = complete(engines["prefill"].port, job, 1, _TO_PREFILL)
    transfer = {**prefill["kv_transfer_params"], **(altered or {})}
    decode = complete(engines["decode"].port, job, job.completion, transfer)
    twin = complete(engines["colocated"].port, job, job.completion)
    return Answers(job, prefill, decode, twin, altered or {})


def ask_all(deployment: Deployment, jobs: list[Job], concurrency: int, altered: dict | None = None) -> list[Answers]:
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda job: ask(deployment, job, altered), jobs))


def prefill_only(deployment: Deployment, job: Job) -> dict:
    return complete(deployment.engines["prefill"].port, job, 1, _TO_PREFILL)


def rows(answer: dict) -> np.ndarray:
    """`[rows, layers, top_k]` of an answer."""
    return rows_of(answer["choices"][0])


def rows_of(choice: dict) -> np.ndarray:
    return np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))


def tokens(answer: dict) -> list[int]:
    return answer["choices"][0]["token_ids"]
