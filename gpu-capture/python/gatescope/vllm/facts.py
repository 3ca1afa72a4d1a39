"""What the scheduler's side tells the worker's, beside vLLM's own metadata of a step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Begin:
    """A request begins, or begins again."""

    outer_id: str
    choice: int
    role: str
    prompt_tokens: int
    first_forward: int
    attempt: int
    # The prompt was computed elsewhere.
    remote: bool
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
            attempt=self.attempt,
            engine_id=self.engine_id,
            remote_engine_id=self.remote_engine_id,
            remote_request_id=self.remote_request_id,
        )


@dataclass
class Finish:
    """A request has ended, with so many tokens."""

    prompt_tokens: int
    completion_tokens: int
    # Another engine goes on with it, and will say how long the completion is.
    handed_over: bool = False

    @property
    def rows(self) -> int:
        """Positions that have a row; what was computed beyond is of tokens that nobody got."""
        return self.prompt_tokens + max(self.completion_tokens - 1, 0)


@dataclass
class StepFacts:
    """One per step: `AuxOutputConnectorMetadata.gatescope`."""

    # Number of the step; -1 where nothing runs in it.
    step: int = -1
    # The last step whose output the scheduler has taken: its requests' ends are known.
    settled: int = -1
    finished: dict[str, Finish] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    begins: dict[str, Begin] = field(default_factory=dict)
