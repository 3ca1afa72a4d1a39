"""What the agent is told, in the order of the engine's steps.

vLLM launches a step before it has the output of the one before, and a step may compute positions of a request that has ended in
the step before: these rows are of tokens that nobody got. So a step's rows wait, on the host and without a copy, until the
scheduler has taken its output and has said which of its requests ended where.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gatescope.vllm.facts import Finish, StepFacts


@dataclass
class _Hit:
    request_id: str
    first_block: int
    hashes: list[bytes]
    rows: np.ndarray | None


@dataclass
class _Rows:
    """A step that was launched; its rows come later."""

    request_ids: Sequence[str]
    step: int
    firsts: np.ndarray | None = None
    offsets: np.ndarray | None = None
    rejected: np.ndarray | None = None
    rows: np.ndarray | None = None
    hits: list[_Hit] = field(default_factory=list)
    # Its rows never come.
    lost: bool = False


@dataclass
class _Facts:
    facts: StepFacts | None
    generation: int | None


class Told:
    """The queue in front of an agent. Its length is bounded by the steps that the engine has in flight."""

    def __init__(self, agent, steps_in_flight: int) -> None:
        self._agent = agent
        self._most = steps_in_flight + 2
        self._queue: deque[_Rows | _Facts] = deque()
        self._arrived = 0
        self._settled = -1
        self._ends: dict[str, Finish] = {}
        self._hits: list[_Hit] = []
        self._lock = threading.Lock()

    def step(self, facts: StepFacts | None, generation: int | None) -> None:
        """What the scheduler says with a step; a generation where it is a new one."""
        if facts is None and generation is None:
            return
        with self._lock:
            if facts is not None:
                self._settled = max(self._settled, facts.settled)
                self._ends.update(facts.finished)
                if generation is None and not (facts.begins or facts.preempted or facts.finished):
                    return
            self._queue.append(_Facts(facts, generation))

    def cached(self, request_id: str, first_block: int, hashes: list[bytes], rows: np.ndarray | None) -> None:
        """Blocks that a request found in the prefix cache; told before the rows that arrive next."""
        with self._lock:
            self._hits.append(_Hit(request_id, first_block, hashes, rows))

    def launched(self, request_ids: Sequence[str], step: int) -> _Rows:
        """A step is on its way; `captured` gives its rows."""
        entry = _Rows(request_ids, step)
        with self._lock:
            self._queue.append(entry)
        return entry

    def captured(self, pending, firsts: np.ndarray) -> None:
        """Rows of a step, each request's from position `firsts` on."""
        with self._lock:
            entry = pending.gatescope
            entry.firsts = firsts
            entry.offsets = np.array(pending.query_start_loc, np.int64)
            entry.rejected = np.array(pending.num_rejected, np.int64)
            entry.rows = np.ascontiguousarray(pending.routed_experts)
            entry.hits, self._hits = self._hits, []
            self._arrived += 1

    def lost(self, pending) -> None:
        """A step has no rows for us, after an error."""
        with self._lock:
            entry = getattr(pending, "gatescope", None)
            if entry is not None and entry.rows is None:
                entry.lost = True

    def drain(self, all_of_it: bool = False) -> None:
        """Tells what is due."""
        with self._lock:
            while self._queue:
                head = self._queue[0]
                if isinstance(head, _Facts):
                    self._queue.popleft()
                    self._tell(head)
                elif head.lost or (head.rows is None and len(self._queue) > 16 * self._most):
                    self._queue.popleft()
                elif head.rows is None:
                    # On its way.
                    return
                elif all_of_it or self._is_due(head):
                    self._queue.popleft()
                    self._arrived -= 1
                    self._ship(head)
                else:
                    return

    def _is_due(self, entry: _Rows) -> bool:
        return (
            entry.step <= self._settled
            or self._arrived > self._most
            or all(request_id in self._ends for request_id in entry.request_ids)
        )

    def _ship(self, entry: _Rows) -> None:
        for hit in entry.hits:
            self._agent.cached_blocks(hit.request_id, hit.first_block, hit.hashes, hit.rows)
        if self._ends:
            for index, request_id in enumerate(entry.request_ids):
                end = self._ends.get(request_id)
                if end is None:
                    continue
                rows = entry.offsets[index + 1] - entry.offsets[index]
                beyond = entry.firsts[index] + rows - entry.rejected[index] - end.rows
                if beyond > 0:
                    entry.rejected[index] = min(entry.rejected[index] + beyond, rows)
        self._agent.capture_step(entry.request_ids, entry.firsts, entry.offsets, entry.rejected, entry.rows)

    def _tell(self, entry: _Facts) -> None:
        if entry.generation is not None:
            self._agent.generation(entry.generation)
        facts = entry.facts
        if facts is None:
            return
        for request_id, finish in facts.finished.items():
            for hit in [hit for hit in self._hits if hit.request_id == request_id]:
                self._hits.remove(hit)
                self._agent.cached_blocks(hit.request_id, hit.first_block, hit.hashes, hit.rows)
            self._agent.finish(request_id, completion_tokens=None if finish.handed_over else finish.completion_tokens)
            # Rows of later steps are of other requests.
            self._ends.pop(request_id, None)
        for request_id in facts.preempted:
            self._agent.preempt(request_id)
        for request_id, begin in facts.begins.items():
            begin.tell(self._agent, request_id)
