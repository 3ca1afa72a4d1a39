"""The scheduler's side: which requests begin, where their first forward is, when they are preempted and finished."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from gatescope.vllm import capture, identity, log, pair, versions
from gatescope.vllm.capture import harmless
from gatescope.vllm.settings import Settings

_MARK = "_gatescope"


@dataclass
class Begin:
    """What the worker needs to know of a request; travels with the connector's metadata."""

    outer_id: str
    choice: int
    role: str
    prompt_tokens: int
    first_forward: int
    prompt_start: int
    attempt: int
    engine_id: str | None
    remote_engine_id: str | None
    remote_request_id: str | None

    def tell(self, agent, request_id: str) -> None:
        agent.start(
            request_id,
            outer_id=self.outer_id,
            choice=self.choice,
            role=self.role,
            prompt_tokens=self.prompt_tokens,
            first_forward=self.first_forward,
            prompt_start=self.prompt_start,
            attempt=self.attempt,
            engine_id=self.engine_id,
            remote_engine_id=self.remote_engine_id,
            remote_request_id=self.remote_request_id,
        )


@dataclass
class _Known:
    first_forward: int
    attempt: int = 0
    # An attempt whose start has been told.
    told: int = -1
    told_first: int = -1
    preempted: bool = False


class SchedulerTap:
    """Beside one `AuxOutputSchedulerConnector`."""

    def __init__(self, settings: Settings, vllm_config, block_size: int) -> None:
        self._settings = settings
        self._engine_id = identity.engine_id(vllm_config)
        self._agent = capture.agent(settings, vllm_config, "scheduler", block_size)
        self._known: dict[str, _Known] = {}

    def floors(self, scheduled, requests) -> dict[str, int]:
        """First forwards of the scheduled decodes: below them, a decode has no rows to emit."""
        floors = {}
        for request_id in scheduled:
            request = requests[request_id]
            known = self._known.get(request_id)
            if known is None:
                known = self._known[request_id] = _Known(request.num_computed_tokens)
            elif request.num_output_tokens == 0 and not known.preempted:
                # A failed KV load: the decode computes from further ahead than it was to.
                known.first_forward = min(known.first_forward, request.num_computed_tokens)
            if pair.is_remote_decode(request.kv_transfer_params):
                floors[request_id] = known.first_forward
        return floors

    @harmless
    def begins(self, scheduled, requests) -> dict[str, Begin]:
        """Requests that begin, or begin again, with this step."""
        begins = {}
        for request_id in scheduled:
            known = self._known[request_id]
            if (known.told, known.told_first) == (known.attempt, known.first_forward):
                continue
            request = requests[request_id]
            known.told, known.told_first = known.attempt, known.first_forward
            begin = begins[request_id] = self._begin(request, known)
            if self._agent is not None:
                begin.tell(self._agent, request_id)
        return begins

    def _begin(self, request, known: _Known) -> Begin:
        outer = identity.outer_id(request.request_id)
        params = request.kv_transfer_params
        decode = pair.is_remote_decode(params)
        if self._settings.role is not None:
            role = self._settings.role
        elif decode:
            role = "decode"
        else:
            role = "prefill" if pair.is_remote_prefill(params) else "colocated"
        return Begin(
            outer_id=outer.request_id,
            choice=outer.choice,
            role=role,
            prompt_tokens=request.num_prompt_tokens,
            first_forward=known.first_forward if decode else 0,
            prompt_start=request.sampling_params.routed_experts_prompt_start,
            attempt=known.attempt,
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
            if self._agent is not None and known.told >= 0:
                self._agent.finish(request_id, completion_tokens=request.num_output_tokens)
            return
        known.preempted = True
        known.attempt += 1
        if self._agent is not None:
            self._agent.preempt(request_id)

    @harmless
    def reset(self, generation: int) -> None:
        if self._agent is not None:
            self._agent.generation(generation)


def install(settings: Settings) -> None:
    from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector as Connector
    from vllm.v1.core.sched.scheduler import Scheduler

    if hasattr(Scheduler.__init__, _MARK):
        return
    versions.expect(
        Connector.build_connector_meta,
        ["self", "scheduler_output", "requests"],
        "routed_experts_prompt_start",
        "num_scheduled_tokens",
        "AuxOutputConnectorMetadata",
    )
    versions.expect(Connector.request_finished, ["self", "request"])
    versions.expect(Connector.reset, ["self"], "_generation")
    construct, build = Scheduler.__init__, Connector.build_connector_meta
    finished, reset = Connector.request_finished, Connector.reset

    @functools.wraps(construct)
    def init(self, vllm_config, *arguments, **named):
        construct(self, vllm_config, *arguments, **named)
        connector = getattr(self, "aux_output_connector", None)
        if connector is None:
            log.once("captures nothing: this engine runs without --enable-return-routed-experts")
            return
        connector.gatescope = SchedulerTap(settings, vllm_config, _block_size(self, vllm_config))

    @functools.wraps(build)
    def build_connector_meta(self, scheduler_output, requests):
        metadata = build(self, scheduler_output, requests)
        tap = getattr(self, "gatescope", None)
        if tap is not None:
            for request_id, floor in tap.floors(metadata.requests, requests).items():
                metadata.requests[request_id] = max(metadata.requests[request_id], floor)
            metadata.gatescope = tap.begins(metadata.requests, requests)
        return metadata

    @functools.wraps(finished)
    def request_finished(self, request):
        finished(self, request)
        tap = getattr(self, "gatescope", None)
        if tap is not None:
            tap.ended(request)

    @functools.wraps(reset)
    def reset_namespace(self):
        reset(self)
        tap = getattr(self, "gatescope", None)
        if tap is not None:
            tap.reset(self._generation)

    setattr(init, _MARK, True)
    Scheduler.__init__ = init
    Connector.build_connector_meta = build_connector_meta
    Connector.request_finished = request_finished
    Connector.reset = reset_namespace


def _block_size(scheduler, vllm_config) -> int:
    """Positions of the blocks that are hashed."""
    cache = vllm_config.cache_config
    return getattr(cache, "hash_block_size", None) or cache.block_size or getattr(scheduler, "block_size", 16)
