"""The worker's side: rows of each step, hashes of KV blocks, and blocks from the prefix cache."""

from __future__ import annotations

import numpy as np

from gatescope.vllm import log, moe, versions
from gatescope.vllm.harmless import harmless
from gatescope.vllm.partial_block import PartialBlocks, skip_missing
from gatescope.vllm.settings import Settings
from gatescope.vllm.told import Told


class WorkerTap:
    """Beside one `AuxOutputWorkerConnector` that owns the data (the first tensor-parallel rank's)."""

    def __init__(self, settings: Settings, vllm_config, model, connector) -> None:
        from gatescope.vllm.agent import start

        self._connector = connector
        self._block = connector._buffer.block_size
        self.partial = PartialBlocks(self._block)
        self._agent = start(settings, vllm_config, self._block)
        self._told = None if self._agent is None else Told(self._agent, connector._max_concurrent_batches)
        # Prefix hits by request, as (first block, hashes): told with the rows that vLLM puts into the first answer.
        self._hits: dict[str, tuple[int, list[bytes]]] = {}
        self._generation = 0
        self._tell_shape(vllm_config, model)

    @harmless
    def _tell_shape(self, vllm_config, model) -> None:
        layers, top_k = self._connector._capturer.shape_per_token
        if self._agent is not None:
            self._agent.model_shape(layers, top_k, vllm_config.model_config.get_num_experts(), moe.layers(model))

    @harmless
    def note(self, metadata) -> None:
        """Before a step: what the scheduler says of it."""
        facts = getattr(metadata, "gatescope", None)
        if facts is not None:
            for request_id, begin in facts.begins.items():
                self._hits.pop(request_id, None)
                if begin.remote:
                    self.partial.first_forwards[request_id] = begin.first_forward
        if self._told is None:
            return
        generation = metadata.generation if metadata.generation != self._generation else None
        self._generation = metadata.generation
        if facts is not None:
            for request_id in facts.finished:
                if hit := self._hits.pop(request_id, None):
                    # It ended before its first token: there are no rows at hand.
                    self._told.cached(request_id, *hit, None)
        self._told.step(facts, generation)
        for request_id, packed in metadata.block_hashes.items():
            state = None if generation is not None else self._connector._requests.get(request_id)
            self._agent.block_hashes(request_id, 0 if state is None else len(state.aux_output_keys), list(packed))

    @harmless
    def begun(self) -> None:
        """vLLM has taken a step's metadata."""
        if self._told is not None and not self._connector._pending_outputs:
            self._told.drain()

    @harmless
    def prepared(self, pending) -> None:
        """A step was launched."""
        facts = getattr(self._connector._step_metadata, "gatescope", None)
        if self._told is not None:
            pending.gatescope = self._told.launched(pending.request_ids, -1 if facts is None else facts.step)

    @harmless
    def arrived(self, pending) -> np.ndarray:
        """A step's rows are on the host: positions of the first row of each request."""
        firsts = pending.token_starts[: len(pending.request_ids)].tolist()
        requests = self._connector._requests
        for index, (request_id, first) in enumerate(zip(pending.request_ids, firsts)):
            state = requests[request_id]
            if state.capture_cursor is None:
                self._hit(request_id, state, first)
            elif state.capture_cursor < first:
                # After rejected tokens a step begins earlier than it was scheduled.
                firsts[index] = state.capture_cursor
        return np.array(firsts, np.int64)

    def _hit(self, request_id: str, state, computed: int) -> None:
        first, last = self.partial.first_block(request_id), computed // self._block
        if self.partial.first_forwards and request_id not in self.partial.first_forwards:
            skip_missing(self._connector, request_id, state, computed)
        keys = state.aux_output_keys[first:last]
        if last <= first:
            return
        if len(keys) < last - first:
            log.once("blocks of a prefix hit have no hashes: their rows are missing")
            return
        self._hits[request_id] = (first, [bytes.fromhex(key.rsplit("/", 1)[1]) for key in keys])

    @harmless
    def captured(self, pending, firsts: np.ndarray | None, outputs) -> None:
        """vLLM has built a step's output."""
        if self._told is None:
            return
        try:
            if firsts is not None:
                self._capture(pending, firsts, outputs)
        finally:
            self._told.lost(pending)
            self._told.drain()

    def _capture(self, pending, firsts: np.ndarray, outputs) -> None:
        for request_id in [request_id for request_id in self._hits if request_id in outputs]:
            first, hashes = self._hits.pop(request_id)
            output = outputs[request_id]
            start = first * self._block - output.token_start
            # A caller that asked for later rows only gets no rows of the hit, and neither do we.
            rows = output.rows[start : start + len(hashes) * self._block] if start >= 0 else None
            whole = rows is not None and len(rows) == len(hashes) * self._block
            self._told.cached(request_id, first, hashes, np.ascontiguousarray(rows) if whole else None)
        self._told.captured(pending, firsts)

    @harmless
    def forget(self) -> None:
        self.partial.forget(self._connector._requests)

    @harmless
    def close(self) -> None:
        if self._told is not None:
            self._told.drain(all_of_it=True)
            self._agent.close(3.0)


def check() -> None:
    from vllm.distributed.aux_output_connector.routed_experts import RoutedExpertsBuffer as Buffer
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector as Connector

    versions.expect(Connector.begin_step, ["self", "metadata"], "state.aux_output_keys.extend(keys)", "finished_requests")
    versions.expect(Connector.prepare_output, ["self", "input_batch"], "_step_metadata", "self._pending_outputs.append")
    versions.expect(
        Connector._commit_output,
        ["self", "pending"],
        "rows = routed_experts[start : end - rejected]",
        "capture_start = capture_cursor",
        "emit_start >= capture_start",
        "buffer.capture(request_id, capture_start, rows)",
    )
    versions.expect(Connector._teardown, ["self", "request_ids"])
    versions.expect(Connector.close, ["self"])
    versions.expect(Buffer.capture, ["self", "request_id", "token_start", "rows"], "self._requests", "block_size")


def install(settings: Settings) -> None:
    from vllm.distributed.aux_output_connector.routed_experts import RoutedExpertsBuffer as Buffer
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector as Connector

    def tap_of(connector) -> WorkerTap | None:
        return getattr(connector, "gatescope", None)

    def init(construct):
        def tapped(self, **named):
            construct(self, **named)
            if self._buffer is None:
                return
            try:
                self.gatescope = self._buffer.gatescope = WorkerTap(settings, named["vllm_config"], named["model"], self)
            except Exception as error:
                log.once(f"captures nothing: {type(error).__name__}: {error}")

        return tapped

    def begin(begin_step):
        def noted(self, metadata):
            tap = tap_of(self)
            if tap is None or metadata is None:
                return begin_step(self, metadata)
            tap.note(metadata)
            begin_step(self, metadata)
            tap.begun()

        return noted

    def prepare(prepare_output):
        def noted(self, input_batch):
            pending = prepare_output(self, input_batch)
            if pending is not None and (tap := tap_of(self)) is not None:
                tap.prepared(pending)
            return pending

        return noted

    def commit(commit_output):
        def captured(self, pending):
            tap = tap_of(self)
            if tap is None:
                return commit_output(self, pending)
            firsts = tap.arrived(pending)
            fronts = tap.partial.before(pending, self._requests)
            outputs = commit_output(self, pending)
            tap.partial.after(outputs, fronts)
            tap.captured(pending, firsts, outputs)
            return outputs

        return captured

    def whole_blocks(capture):
        def capture_whole_blocks(self, request_id, token_start, rows):
            tap = tap_of(self)
            if tap is not None:
                taken = tap.partial.take(request_id, token_start, rows, request_id in self._requests)
                token_start, rows = token_start + taken, rows[taken:]
            return capture(self, request_id, token_start, rows)

        return capture_whole_blocks

    def teardown(teardown_requests):
        def forgotten(self, request_ids):
            teardown_requests(self, request_ids)
            if (tap := tap_of(self)) is not None:
                tap.forget()

        return forgotten

    def close(close_connector):
        def closed(self):
            if (tap := tap_of(self)) is not None:
                tap.close()
            close_connector(self)

        return closed

    versions.replace(Connector, "__init__", init)
    versions.replace(Connector, "begin_step", begin)
    versions.replace(Connector, "prepare_output", prepare)
    versions.replace(Connector, "_commit_output", commit)
    versions.replace(Connector, "_teardown", teardown)
    versions.replace(Connector, "close", close)
    versions.replace(Buffer, "capture", whole_blocks)
