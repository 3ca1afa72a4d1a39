"""The capture agent."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy
from numpy.typing import NDArray

_Integers = NDArray[numpy.int64] | NDArray[numpy.int32] | Sequence[int]
_Rows = NDArray[numpy.uint8] | NDArray[numpy.uint16]

__version__: str

class Agent:
    """Streams rows to a collector. One per process; a forked child starts its own.

    Only `flush` and `close` wait. The calls that capture never raise: what they cannot use is counted and logged once.
    `request_id` is the engine's own (inner) id everywhere.
    """

    def __init__(
        self,
        collector: str,
        *,
        instance: str,
        role: str = "colocated",
        run: str = "default",
        model: str | None = None,
        agent: str | None = None,
        token: str | None = None,
        spool: str | PathLike[str] | None = None,
        spool_bytes: int = ...,
        ring_bytes: int = ...,
        block_size: int = 16,
        metrics: str | None = None,
    ) -> None:
        """Starts. `metrics` is a local `HOST:PORT` for `/metrics`. `ValueError` or `OSError` where these cannot work; a collector that is away is no such case."""

    def model_shape(
        self, layers: int, top_k: int, num_experts: int, moe_layers: Sequence[int] | None = None
    ) -> None: ...
    def capture_step(
        self,
        request_ids: Sequence[str],
        first_positions: _Integers,
        row_offsets: _Integers,
        rejected: _Integers | None,
        rows: _Rows,
    ) -> None:
        """One engine step. Request i has rows `row_offsets[i] .. row_offsets[i + 1] - rejected[i]` of
        `rows` (`[rows, layers, top_k]`), at positions from `first_positions[i]` on. They are copied before this returns."""

    def start(
        self,
        request_id: str,
        *,
        outer_id: str,
        choice: int = 0,
        prompt_tokens: int | None = None,
        first_forward: int | None = None,
        attempt: int = 0,
        role: str | None = None,
        engine_id: str | None = None,
        remote_engine_id: str | None = None,
        remote_request_id: str | None = None,
        prompt_start: int | None = None,
    ) -> None:
        """The engine has begun a request, or begun it again. Rows that came before wait for this."""

    def block_hashes(self, request_id: str, first_block: int, hashes: Sequence[bytes]) -> None:
        """Hashes of KV blocks, by which their rows are sent once and referred to after that."""

    def cached_blocks(
        self, request_id: str, first_block: int, hashes: Sequence[bytes], rows: _Rows | None = None
    ) -> None:
        """KV blocks from the prefix cache, whose rows no forward computes; `rows` are those that the engine has kept."""

    def preempt(self, request_id: str) -> None: ...
    def finish(self, request_id: str, *, completion_tokens: int | None = None, reason: str | None = None) -> None: ...
    def generation(self, generation: int) -> None:
        """The engine has reset its prefix cache."""

    def flush(self, timeout: float = 5.0) -> bool:
        """Sends all, whole blocks or not, and says whether the collector has it."""

    def close(self, timeout: float = 5.0) -> bool: ...
    def stats(self) -> dict[str, Any]:
        """What was captured, sent, acknowledged, spooled and dropped."""
