"""The worker's side of P/D: a block that begins elsewhere, and blocks whose rows were never here."""

from __future__ import annotations

import numpy as np

from gatescope.vllm import log
from gatescope.vllm.harmless import harmless


class PartialBlocks:
    """What a decode knows of the block in which its first forward is.

    vLLM's buffer takes rows from the beginning of a block on. The first rows of a decode, up to the end of that block, go around
    it: they are answered (or kept until the first token is sampled), and neither buffered nor published.
    """

    def __init__(self, block_size: int) -> None:
        self._block = block_size
        # First forwards of requests whose prompt another engine computed.
        self.first_forwards: dict[str, int] = {}
        self._heads: dict[str, tuple[int, np.ndarray]] = {}

    def first_block(self, request_id: str) -> int:
        """Index of the first block that this engine knows as a whole."""
        return -(-self.first_forwards.get(request_id, 0) // self._block)

    def take(self, request_id, position: int, rows: np.ndarray, has_tail: bool) -> int:
        """How many of these rows belong to the block known in part: they are kept here."""
        if has_tail or request_id not in self.first_forwards:
            return 0
        count = min(-position % self._block, len(rows))
        if count:
            start, head = self._heads.get(request_id, (position, rows[:0]))
            if start + len(head) != position:
                # Begun again: what it computes now counts.
                start, head = position, rows[:0]
            self._heads[request_id] = (start, np.concatenate((head, rows[:count])))
        return count

    @harmless
    def before(self, pending, requests) -> dict[str, tuple[int, np.ndarray]]:
        """Before a step's output is built: lets vLLM look for no row of a block known in part. Gives back what is to be put in
        front of the output, by request."""
        fronts = {}
        if not self._heads:
            return fronts
        for request_id, sampled in zip(pending.request_ids, pending.num_sampled):
            start, head = self._heads.get(request_id, (0, None))
            if head is None or sampled <= 0:
                continue
            state = requests[request_id]
            del self._heads[request_id]
            if start <= state.emit_cursor < start + len(head):
                fronts[request_id] = (state.emit_cursor, head[state.emit_cursor - start :])
                state.emit_cursor = start + len(head)
        return fronts

    @harmless
    def after(self, outputs, fronts) -> None:
        """After it was built."""
        for request_id, (start, head) in (fronts or {}).items():
            output = outputs.get(request_id)
            if output is not None:
                output.rows = np.concatenate((head, output.rows))
                output.token_start = start

    def forget(self, running) -> None:
        """Drops what is known of requests that are gone."""
        for known in (self.first_forwards, self._heads):
            if len(known) > 2 * len(running) + 1024:
                for request_id in [request_id for request_id in known if request_id not in running]:
                    del known[request_id]


@harmless
def skip_missing(connector, request_id: str, state, computed: int) -> None:
    """A prefix hit on blocks whose KV came from elsewhere has no rows here. vLLM would end the engine over it: instead the answer
    begins behind them."""
    block = connector._buffer.block_size
    first, last = state.emit_cursor // block, min(computed // block, len(state.aux_output_keys))
    if first >= last or stored(connector, state.aux_output_keys[first:last]) is not None:
        return
    for index in range(last - 1, first - 1, -1):
        if stored(connector, [state.aux_output_keys[index]]) is None:
            state.emit_cursor = (index + 1) * block
            log.once("a request hit KV blocks that another engine computed: its answer lacks their rows")
            return


def stored(connector, keys) -> bytes | None:
    """Rows of blocks as vLLM keeps them; `None` where it has not all of them."""
    from vllm.distributed.aux_output_connector.store import BlockObjectStoreError

    try:
        return connector._store.get_concatenated(keys)
    except BlockObjectStoreError:
        return None
