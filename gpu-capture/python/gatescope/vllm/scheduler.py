"""The scheduler's side: which requests begin, where their first forward is, when they are preempted and finished.

It has no agent: what it knows travels with the connector's metadata to the worker, who tells it in the order of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatescope.vllm import identity, log, pair, versions
from gatescope.vllm.facts import Begin, Finish, StepFacts
from gatescope.vllm.harmless import harmless
from gatescope.vllm.settings import Settings


@dataclass
class _Known:
    first_forward: int
    decode: bool
    attempt: int = 0
    # The attempt and first forward that the worker knows of.
    told: tuple[int, int] | None = None


class SchedulerTap:
    """Beside one `AuxOutputSchedulerConnector`."""

    def __init__(self, settings: Settings, vllm_config) -> None:
        self._role = settings.role
        self._engine_id = identity.engine_id(vllm_config)
        self._known: dict[str, _Known] = {}
        self._steps = 0
        self._next = StepFacts()

    @harmless
    def floors(self, scheduled, requests) -> dict[str, int]:
        """First forwards of the scheduled decodes: below them, a decode has no rows to emit."""
        floors = {}
        for request_id in scheduled:
            known, request = self._known.get(request_id), requests[request_id]
            if known is None:
                decode = pair.is_remote_decode(request.kv_transfer_params)
                known = self._known[request_id] = _Known(request.num_computed_tokens, decode)
            elif known.decode and request.num_output_tokens == 0 and known.attempt == 0:
                # A failed KV load, found late: the decode computes from further ahead than it was to.
                known.first_forward = min(known.first_forward, request.num_computed_tokens)
            if known.decode:
                floors[request_id] = known.first_forward
        return floors

    @harmless
    def facts(self, scheduled, requests) -> StepFacts:
        """What there is to tell with a step."""
        facts, self._next = self._next, StepFacts(settled=self._next.settled)
        if scheduled:
            facts.step = self._steps
            self._steps += 1
        for request_id in scheduled:
            known = self._known[request_id]
            if known.told != (known.attempt, known.first_forward):
                known.told = (known.attempt, known.first_forward)
                facts.begins[request_id] = self._begin(requests[request_id], known)
        return facts

    def _begin(self, request, known: _Known) -> Begin:
        outer = identity.outer_id(request.request_id)
        params = request.kv_transfer_params
        decode, role = known.decode, self._role
        if role is None:
            role = "decode" if decode else "prefill" if pair.is_remote_prefill(params) else "colocated"
        return Begin(
            outer_id=outer.request_id,
            choice=outer.choice,
            role=role,
            prompt_tokens=request.num_prompt_tokens,
            first_forward=known.first_forward if decode else 0,
            attempt=known.attempt,
            remote=decode,
            engine_id=self._engine_id,
            remote_engine_id=params.get("remote_engine_id") if decode else None,
            remote_request_id=params.get("remote_request_id") if decode else None,
        )

    @harmless
    def ended(self, request) -> None:
        """The request was preempted, or is finished."""
        request_id = request.request_id
        known = self._known.get(request_id)
        if known is None:
            return
        if request.is_finished():
            del self._known[request_id]
            self._next.finished[request_id] = Finish(
                request.num_prompt_tokens, request.num_output_tokens, pair.is_remote_prefill(request.kv_transfer_params)
            )
        else:
            known.attempt += 1
            self._next.preempted.append(request_id)

    @harmless
    def settle(self, metadata) -> None:
        """The scheduler has taken a step's output."""
        facts = getattr(metadata, "gatescope", None)
        if facts is not None and facts.step >= 0:
            self._next.settled = facts.step


def check() -> None:
    from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector as Connector
    from vllm.v1.core.sched.scheduler import Scheduler

    versions.expect(
        Connector.build_connector_meta,
        ["self", "scheduler_output", "requests"],
        "scheduled_requests[request_id] = max(",
        "request.num_tokens - 1",
        "AuxOutputConnectorMetadata(",
    )
    versions.expect(Connector.request_finished, ["self", "request"])
    versions.expect(
        Scheduler.update_from_output, ["self", "scheduler_output", "model_runner_output"], "aux_output_connector.take_output("
    )
    versions.expect(Scheduler._preempt_request, ["self", "request", "timestamp", "drop_stale_output"], "request_finished(request)")
    versions.expect(Scheduler._free_request, ["self", "request", "delay_free_blocks"], "request_finished(request)")
    if hasattr(Connector, "cap_external_hit"):
        versions.expect(Connector.cap_external_hit, ["self", "request", "num_local", "num_external"])


def install(settings: Settings) -> None:
    from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector as Connector
    from vllm.v1.core.sched.scheduler import Scheduler

    def init(construct):
        def tapped(self, vllm_config, *arguments, **named):
            construct(self, vllm_config, *arguments, **named)
            connector = getattr(self, "aux_output_connector", None)
            if connector is None:
                log.once("captures nothing: this engine runs without --enable-return-routed-experts")
            else:
                connector.gatescope = SchedulerTap(settings, vllm_config)

        return tapped

    def build(build_connector_meta):
        def with_facts(self, scheduler_output, requests):
            metadata = build_connector_meta(self, scheduler_output, requests)
            tap = getattr(self, "gatescope", None)
            if tap is not None:
                for request_id, floor in (tap.floors(metadata.requests, requests) or {}).items():
                    metadata.requests[request_id] = max(metadata.requests[request_id], floor)
                metadata.gatescope = tap.facts(metadata.requests, requests)
            return metadata

        return with_facts

    def ended(request_finished):
        def noted(self, request):
            request_finished(self, request)
            tap = getattr(self, "gatescope", None)
            if tap is not None:
                tap.ended(request)

        return noted

    def settle(update_from_output):
        def settled(self, scheduler_output, model_runner_output):
            outputs = update_from_output(self, scheduler_output, model_runner_output)
            tap = getattr(getattr(self, "aux_output_connector", None), "gatescope", None)
            if tap is not None:
                tap.settle(scheduler_output.aux_output_connector_metadata)
            return outputs

        return settled

    def cap(cap_external_hit):
        # vLLM 0.33 loads no KV from elsewhere of whose tokens it has no rows: of a decode it needs none.
        def cap_none_of_decodes(self, request, num_local, num_external):
            if pair.is_remote_decode(request.kv_transfer_params):
                return num_external
            return cap_external_hit(self, request, num_local, num_external)

        return cap_none_of_decodes

    versions.replace(Scheduler, "__init__", init)
    versions.replace(Scheduler, "update_from_output", settle)
    versions.replace(Connector, "build_connector_meta", build)
    versions.replace(Connector, "request_finished", ended)
    if hasattr(Connector, "cap_external_hit"):
        versions.replace(Connector, "cap_external_hit", cap)
