"""The worker's side: rows of each step, hashes of KV blocks, and blocks from the prefix cache."""

from __future__ import annotations

import functools

import numpy as np

from gatescope.vllm import capture, log, moe, pair, versions
from gatescope.vllm.capture import harmless
from gatescope.vllm.settings import Settings

_MARK = "_gatescope"


class WorkerTap:
    """Beside one `AuxOutputWorkerConnector` that owns the data (the first tensor-parallel rank's)."""

    def __init__(self, settings: Settings, vllm_config, model, connector) -> None:
        self._connector = connector
        self._block = connector._buffer.block_size
        self._agent = capture.agent(settings, vllm_config, "worker", self._block)
        # First forwards of requests whose prompt another engine computed.
        self.decodes: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self._generation = 0
        self._tell_shape(vllm_config, model)

    @harmless
    def _tell_shape(self, vllm_config, model) -> None:
        layers, top_k = self._connector._capturer.shape_per_token
        experts = vllm_config.model_config.get_num_experts()
        if self._agent is not None:
            self._agent.model_shape(layers, top_k, experts, moe.layers(model))

    def note(self, metadata) -> None:
        """Before a step: what the scheduler says of its requests."""
        for request_id, begin in (getattr(metadata, "gatescope", None) or {}).items():
            self._attempts[request_id] = begin.attempt
            if begin.role == "decode" or begin.remote_request_id is not None:
                self.decodes[request_id] = begin.first_forward
        self._tell(metadata)

    @harmless
    def _tell(self, metadata) -> None:
        if self._agent is None:
            return
        if metadata.generation != self._generation:
            self._generation = metadata.generation
            self._agent.generation(metadata.generation)
        for request_id, begin in (getattr(metadata, "gatescope", None) or {}).items():
            begin.tell(self._agent, request_id)
        for request_id, packed in metadata.block_hashes.items():
            state = self._connector._requests.get(request_id)
            first = 0 if state is None else len(state.aux_output_keys)
            self._agent.block_hashes(request_id, first, list(packed))

    def forget(self) -> None:
        """Drops what is known of requests that have ended. One that was preempted may have begun again before its end here."""
        running = self._connector._requests
        for known in (self.decodes, self._attempts):
            if len(known) > 2 * len(running) + 1024:
                for request_id in [request_id for request_id in known if request_id not in running]:
                    del known[request_id]

    @harmless
    def starts(self, pending) -> np.ndarray:
        """Positions of the first accepted row of each request in the step, and what it skips since it was cached."""
        first_positions = np.array(pending.token_starts[: len(pending.request_ids)], np.int64)
        for index, request_id in enumerate(pending.request_ids):
            state = self._connector._requests[request_id]
            if state.capture_cursor is None:
                self._cached(request_id, state, int(first_positions[index]))
            else:
                # After rejected tokens a step begins earlier than it was scheduled.
                first_positions[index] = min(first_positions[index], state.capture_cursor)
        return first_positions

    def _cached(self, request_id: str, state, computed: int) -> None:
        blocks = computed // self._block
        if blocks == 0 or self._agent is None or request_id in self.decodes or self._attempts.get(request_id, 0) > 0:
            return
        keys = state.aux_output_keys[:blocks]
        if len(keys) < blocks:
            log.once("blocks of a prefix cache hit have no hashes: their rows are missing")
            return
        hashes = [bytes.fromhex(key.rsplit("/", 1)[1]) for key in keys]
        self._agent.cached_blocks(request_id, 0, hashes, self._stored(keys))

    def _stored(self, keys) -> np.ndarray | None:
        from vllm.distributed.aux_output_connector.routed_experts import materialize_routed_experts

        buffer = self._connector._buffer
        try:
            rows = materialize_routed_experts(
                self._connector._store, keys, shape_per_token=buffer.shape_per_token, dtype=buffer.dtype
            )
        except Exception as error:
            log.once(f"rows of a prefix cache hit are not in vLLM's store: {error}")
            return None
        return np.ascontiguousarray(rows)

    @harmless
    def captured(self, pending, first_positions: np.ndarray | None) -> None:
        if self._agent is None or first_positions is None:
            return
        self._agent.capture_step(
            pending.request_ids,
            first_positions,
            np.asarray(pending.query_start_loc, np.int64),
            np.asarray(pending.num_rejected, np.int64),
            np.ascontiguousarray(pending.routed_experts),
        )

    def in_part(self, request_id, position: int, has_tail: bool) -> int:
        """Rows from this position on that belong to a block whose beginning another engine computed."""
        if has_tail or request_id not in self.decodes:
            return 0
        return -position % self._block


def install(settings: Settings) -> None:
    from vllm.distributed.aux_output_connector.routed_experts import RoutedExpertsBuffer as Buffer
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector as Connector

    if hasattr(Connector.__init__, _MARK):
        return
    versions.expect(Connector.begin_step, ["self", "metadata"], "aux_output_keys", "finished_requests")
    versions.expect(Connector._commit_output, ["self", "pending"], "capture_cursor", "num_rejected", "query_start_loc")
    versions.expect(Connector._teardown, ["self", "request_ids"])
    versions.expect(Buffer.capture, ["self", "request_id", "token_start", "rows"], "self._requests", "block_size")
    construct, begin, commit, teardown = (
        Connector.__init__,
        Connector.begin_step,
        Connector._commit_output,
        Connector._teardown,
    )
    capture_rows = Buffer.capture

    @functools.wraps(construct)
    def init(self, **named):
        construct(self, **named)
        if self._buffer is None:
            return
        try:
            self.gatescope = self._buffer.gatescope = WorkerTap(settings, named["vllm_config"], named["model"], self)
        except Exception as error:
            log.once(f"captures nothing: {type(error).__name__}: {error}")

    @functools.wraps(begin)
    def begin_step(self, metadata):
        tap = getattr(self, "gatescope", None)
        if tap is not None and metadata is not None:
            tap.note(metadata)
        begin(self, metadata)

    @functools.wraps(commit)
    def commit_output(self, pending):
        tap = getattr(self, "gatescope", None)
        starts = None if tap is None else tap.starts(pending)
        outputs = commit(self, pending)
        if tap is not None:
            tap.captured(pending, starts)
        return outputs

    @functools.wraps(teardown)
    def teardown_requests(self, request_ids):
        teardown(self, request_ids)
        tap = getattr(self, "gatescope", None)
        if tap is not None:
            tap.forget()

    @functools.wraps(capture_rows)
    def capture_whole_blocks(self, request_id, token_start, rows):
        tap = getattr(self, "gatescope", None)
        if tap is not None:
            skipped = min(tap.in_part(request_id, token_start, request_id in self._requests), len(rows))
            if skipped:
                token_start, rows = token_start + skipped, rows[skipped:]
        return capture_rows(self, request_id, token_start, rows)

    setattr(init, _MARK, True)
    Connector.__init__ = init
    Connector.begin_step = begin_step
    Connector._commit_output = commit_output
    Connector._teardown = teardown_requests
    Buffer.capture = capture_whole_blocks
