"""The cases. Those with the same flags share their engines."""

from __future__ import annotations

import signal
import threading
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass

from pair import traffic
from pair.servers import Collector, Deployment, Engine, Flags
from pair.traffic import Mix
from pair.verdict import Verdict, judge, stream_fault

BASE = Flags()
CHUNKED = Flags(every=("--max-num-batched-tokens", "64"))
WIDE = Flags(model="tiny-wide")
DENSE_FIRST = Flags(model="tiny-dense-first")
FEW_BLOCKS = Flags(decode=("--num-gpu-blocks-override", "11", "--max-model-len", "320"))
SYNCHRONOUS = Flags(every=("--no-async-scheduling",))


@dataclass(frozen=True)
class Outcome:
    passed: bool
    note: str
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    flags: Flags | None
    what: str
    run: Callable[[Deployment, str], Outcome]


def _outcome(verdict: Verdict, note: str = "", also: bool = True) -> Outcome:
    counts = f"{verdict.requests} requests, {verdict.rows} rows: answers {verdict.answers}, streams {verdict.streams}"
    return Outcome(verdict.passed and also, f"{counts}, twin {verdict.twins}{', ' if note else ''}{note}", tuple(verdict.faults))


def _plain(mix: Mix) -> Callable[[Deployment, str], Outcome]:
    def run(deployment: Deployment, name: str) -> Outcome:
        return _outcome(judge(deployment.collector, traffic.ask_all(deployment, mix.jobs(name), mix.concurrency)))

    return run


def _counting(mix: Mix, engine: str, metric: str, what: str) -> Callable[[Deployment, str], Outcome]:
    """As `_plain`, and the engine must have counted something meanwhile."""

    def run(deployment: Deployment, name: str) -> Outcome:
        counted = deployment.engines[engine]
        before = counted.metric(metric)
        verdict = judge(deployment.collector, traffic.ask_all(deployment, mix.jobs(name), mix.concurrency))
        count = counted.metric(metric) - before
        return _outcome(verdict, f"{count:.0f} {what} on {engine}", count > 0)

    return run


_shared_prefix = _counting(
    Mix(requests=8, concurrency=4, shared=96, prompt=(3, 80)), "prefill", "vllm:prefix_cache_hits_total", "prefix tokens hit"
)
_preemption = _counting(
    Mix(requests=6, concurrency=6, prompt=(56, 62), completion=(40, 40)), "decode", "vllm:num_preemptions_total", "preemptions"
)


def _choices(deployment: Deployment, name: str) -> Outcome:
    """Several sequences of one prompt, sampled by the colocated engine."""
    jobs = Mix(requests=2, prompt=(40, 90), completion=(6, 12)).jobs(name)
    more = {"n": 3, "temperature": 1.0, "seed": 7}
    faults, different = [], 0
    for job in jobs:
        answer = traffic.complete(deployment.engines["colocated"].port, job, job.completion, more=more)
        different += len({tuple(choice["token_ids"]) for choice in answer["choices"]}) > 1
        for choice in answer["choices"]:
            fault = stream_fault(deployment.collector, "twin", job.request_id, traffic.rows_of(choice), choice["index"])
            if fault is not None:
                faults.append(f"{job.request_id} choice {choice['index']}: {fault}")
    note = f"{len(jobs)} requests of 3 sequences, {different} of them sampled different ones"
    return Outcome(not faults and different > 0, note, tuple(faults))


def _aborted(deployment: Deployment, name: str) -> Outcome:
    """A client goes away in the middle of an answer; other requests are as ever."""
    *others, gone = Mix(requests=4, concurrency=3, prompt=(40, 90), completion=(8, 12)).jobs(name)
    prefill = traffic.prefill_only(deployment, gone)

    def leave() -> None:
        try:
            traffic.complete(deployment.engines["decode"].port, gone, 400, prefill["kv_transfer_params"], timeout=4.0)
        except (TimeoutError, urllib.error.URLError):
            return
        raise AssertionError("the answer came before its client left")

    leaving = threading.Thread(target=leave)
    leaving.start()
    verdict = judge(deployment.collector, traffic.ask_all(deployment, others, 3))
    leaving.join()
    left = _settled(deployment.collector, gone.request_id)
    told = left is not None and left["rows"] >= len(gone.prompt) and left["completion_tokens"] is not None
    told = told and left["completion_tokens"] < 400 and left["status"] == "whole"
    return _outcome(verdict, f"the aborted one: {left and (left['status'], left['rows'], left['completion_tokens'])}", told)


def _settled(collector: Collector, request_id: str, within: float = 60.0) -> dict | None:
    """A request of the pair as the collector has it, once it is closed, or as it is after so long."""
    deadline = time.monotonic() + within
    while True:
        found = collector.sql(f"SELECT * FROM requests WHERE run = 'default' AND request_id = '{request_id}'")
        if (found and found[0]["status"] != "open") or time.monotonic() > deadline:
            return found[0] if found else None
        time.sleep(0.5)


def _cache_reset(deployment: Deployment, name: str) -> Outcome:
    """The same prompts before and after a reset of every prefix cache, as after a weight update."""
    mix = Mix(requests=3, concurrency=3, prompt=(70, 120))
    first = mix.jobs(name)
    again = [traffic.Job(job.request_id[:-1] + "x", job.prompt, job.completion) for job in first]
    answers = traffic.ask_all(deployment, first, 3)
    for engine in deployment.engines.values():
        _reset(engine)
    answers += traffic.ask_all(deployment, again, 3)
    verdict = judge(deployment.collector, answers)
    generations = [
        {
            row["generation"]
            for job in jobs
            for row in deployment.collector.sql(
                f"SELECT generation FROM captures WHERE run = 'default' AND request_id = '{job.request_id}'"
            )
        }
        for jobs in (first, again)
    ]
    newer = bool(generations[0] and generations[1]) and max(generations[0]) < min(generations[1])
    return _outcome(verdict, f"generations {generations[0]} and then {generations[1]}", newer)


def _reset(engine: Engine, within: float = 90.0) -> None:
    # It fails, and says so in the log alone, while blocks are held for a decode that has not told yet that it has them.
    failed = "Failed to reset prefix cache"
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        before = engine.log.read_text(errors="replace").count(failed)
        engine.post("/reset_prefix_cache")
        time.sleep(0.5)
        if engine.log.read_text(errors="replace").count(failed) == before:
            return
    raise AssertionError(f"the prefix cache of {engine.name} was not reset")


def _collector_restart(deployment: Deployment, name: str) -> Outcome:
    """The collector is killed while requests run and comes back: nothing is missing."""
    mix = Mix(requests=10, concurrency=4, prompt=(40, 120), completion=(8, 16))
    collector = deployment.collector
    captured = "SELECT count(*) AS n FROM captures WHERE run = 'default'"
    before, result = collector.sql(captured)[0]["n"], []
    asking = threading.Thread(target=lambda: result.extend(traffic.ask_all(deployment, mix.jobs(name), mix.concurrency)))
    asking.start()
    deadline = time.monotonic() + 60
    while collector.sql(captured)[0]["n"] == before and time.monotonic() < deadline:
        time.sleep(0.2)
    amid = collector.sql(captured)[0]["n"] - before
    collector.stop(signal.SIGKILL)
    time.sleep(6)
    running = asking.is_alive()
    collector.start()
    collector.wait()
    asking.join()
    verdict = judge(collector, result)
    return _outcome(verdict, f"killed after {amid} spans, back 6 s later", running and amid > 0)


def _failed_load(deployment: Deployment, name: str) -> Outcome:
    """The decode cannot reach the prefill's KV: it computes the prompt itself."""
    mix = Mix(requests=3, concurrency=2, prompt=(50, 120), completion=(4, 8))
    # Nobody listens there; and an engine id that the decode has no connection to yet.
    altered = {"remote_port": 1, "remote_engine_id": "00000000-0000-0000-0000-000000000000"}
    verdict = judge(deployment.collector, traffic.ask_all(deployment, mix.jobs(name), mix.concurrency, altered))
    lower = all(start == 0 for start in verdict.first_forwards)
    return _outcome(verdict, f"first forwards {verdict.first_forwards}", lower)


def _prefill_killed(deployment: Deployment, name: str) -> Outcome:
    """The prefill dies with requests in it: these stay incomplete, nothing else is affected."""
    *others, last = Mix(requests=4, concurrency=3, prompt=(40, 90), completion=(20, 30)).jobs(name)
    answers = traffic.ask_all(deployment, others[:2], 2)
    prefill, decode = deployment.engines["prefill"], deployment.engines["decode"]
    # The decode of one request goes on while its prefill is gone.
    running = threading.Thread(target=lambda: answers.append(traffic.ask(deployment, others[2])))
    running.start()
    while decode.metric("vllm:num_requests_running") < 1 and running.is_alive():
        time.sleep(0.1)
    answered, unanswered = [], []

    def ask_until_it_dies(asker: int) -> None:
        for index in range(1000):
            job = traffic.Job(f"doomed-{asker}-{index}-{last.request_id}", last.prompt[index % 30 :] * 8, 4)
            try:
                traffic.prefill_only(deployment, job)
            except OSError:
                unanswered.append(job)
                return
            answered.append(job)

    asking = [threading.Thread(target=ask_until_it_dies, args=(asker,)) for asker in range(4)]
    for thread in asking:
        thread.start()
    time.sleep(3)
    prefill.stop(signal.SIGKILL)
    for thread in (*asking, running):
        thread.join()
    verdict = judge(deployment.collector, answers)
    twin = traffic.complete(deployment.engines["colocated"].port, last, 4)
    # None of them was decoded.
    patience = time.monotonic() + 150.0
    left = [
        _settled(deployment.collector, job.request_id, within=patience - time.monotonic())
        for job in (*answered, *unanswered)
    ]
    states = {request["status"] for request in left if request is not None}
    well = states == {"incomplete"} and len(unanswered) > 0 and len(answers) == 3 and len(traffic.tokens(twin)) == 4
    seen = sum(request is not None for request in left)
    return _outcome(verdict, f"{len(unanswered)} unanswered, {len(answered)} never decoded: {seen} at the collector, {states}", well)


def _absent(deployment: Deployment, name: str) -> Outcome:
    """Without GATESCOPE_COLLECTOR vLLM is as it was: it refuses the pair, and a colocated engine answers."""
    refused, alone = Engine("prefill", BASE, None), Engine("colocated", BASE, None)
    refused.start()
    alone.start()
    try:
        refused.ended()
        refusal = refused.said("incompatible with NixlConnector; PD auxiliary output is not supported")
        alone.wait()
        job = Mix(requests=1).jobs(name)[0]
        answer = traffic.complete(alone.port, job, 4)
        answered = len(traffic.rows(answer)) == len(job.prompt) + 3
        seen = deployment.collector.sql(f"SELECT count(*) AS n FROM captures WHERE request_id = '{job.request_id}'")[0]["n"]
        quiet = not alone.said("gatescope:")
    finally:
        refused.stop()
        alone.stop()
    note = f"refused {refusal}, answered {answered}, spans at the collector {seen}, silent {quiet}"
    return Outcome(refusal and answered and seen == 0 and quiet, note)


CASES = {
    "concurrency-1": Case(BASE, "one request at a time", _plain(Mix(requests=4, concurrency=1))),
    "concurrency-8": Case(BASE, "eight at a time", _plain(Mix(requests=16, concurrency=8))),
    "shared-prefix": Case(BASE, "prompts that begin alike", _shared_prefix),
    "choices": Case(BASE, "several sequences of a prompt", _choices),
    "cache-reset": Case(BASE, "prefix caches reset in between", _cache_reset),
    "failed-load": Case(BASE, "decode cannot load the KV", _failed_load),
    "aborted": Case(BASE, "a client goes away", _aborted),
    "collector-restart": Case(BASE, "collector killed and restarted", _collector_restart),
    "prefill-killed": Case(BASE, "prefill killed", _prefill_killed),
    "preemption": Case(FEW_BLOCKS, "decode preempts", _preemption),
    "chunked": Case(CHUNKED, "prompts in chunks of 64", _plain(Mix(requests=6, concurrency=3, prompt=(90, 250)))),
    "wide": Case(WIDE, "300 experts: two bytes an id", _plain(Mix(requests=6, concurrency=3))),
    "dense-first": Case(DENSE_FIRST, "first layer has no gate", _plain(Mix(requests=6, concurrency=3))),
    "synchronous": Case(SYNCHRONOUS, "no overlap of steps", _plain(Mix(requests=6, concurrency=3))),
    "absent": Case(None, "plugin not set", _absent),
}
