"""From a finished SGLang request to the agent."""

from __future__ import annotations

import os
import re
import socket

import numpy as np

from gatescope.vllm import log
from gatescope.vllm.settings import Settings

_ROLES = {"prefill": "prefill", "decode": "decode", "null": "colocated"}


def moe_layers(config) -> list[int]:
    """Hidden layers that have a gate, as the model families write it into their configurations."""
    layers = range(config.num_hidden_layers)
    dense = set(getattr(config, "mlp_only_layers", None) or ())
    first = getattr(config, "first_k_dense_replace", None) or 0
    step = getattr(config, "decoder_sparse_step", None) or 1
    frequency = getattr(config, "moe_layer_freq", None) or 1

    def gated(layer: int) -> bool:
        if isinstance(frequency, (list, tuple)):
            every = layer < len(frequency) and bool(frequency[layer])
        else:
            every = layer % frequency == 0
        return layer not in dense and layer >= first and (layer + 1) % step == 0 and every

    return [layer for layer in layers if gated(layer)]


def num_experts(config) -> int:
    names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    found = [getattr(config, name) for name in names if getattr(config, name, None)]
    if not found:
        raise ValueError(f"the model's configuration has none of {', '.join(names)}")
    return found[0]


class Reporter:
    """One per engine process that owns rows."""

    def __init__(self, agent, role: str, experts: int) -> None:
        self._agent = agent
        self._role = role
        self._width = np.uint8 if experts <= 256 else np.uint16
        self._experts = experts

    @classmethod
    def start(cls, settings: Settings, *, config, model: str, mode: str, rank: int | None) -> Reporter | None:
        from gatescope._agent import Agent

        # Schedulers are children of the engine's process.
        name = settings.instance or f"{socket.gethostname()}-{os.getppid()}"
        instance = name if rank is None else f"{name}_dp{rank}"
        role = settings.role or _ROLES.get(mode, "colocated")
        spool = settings.spool and os.path.join(settings.spool, re.sub(r"[^\w.-]", "_", instance))
        try:
            agent = Agent(
                settings.collector,
                instance=instance,
                role=role,
                run=settings.run,
                model=model,
                token=settings.token,
                spool=spool,
            )
            agent.model_shape(
                config.num_hidden_layers, config.num_experts_per_tok, num_experts(config), moe_layers(config)
            )
        except (ValueError, OSError) as error:
            log.once(f"captures nothing: {error}")
            return None
        return cls(agent, role, num_experts(config))

    def report(self, req) -> None:
        """Tells the agent of a request that has ended."""
        prompt = len(req.origin_input_ids)
        rows = np.asarray(req.routed_experts)
        start = min(req.routed_experts_start_len, prompt + len(req.output_ids_through_stop) - 1)
        own = start
        if self._role == "decode":
            # It begins with the token that the prefill has sampled: below, its rows are whatever was in their place.
            own = max(start, prompt)
        rows = rows[own - start :]
        link = self._link(req)
        key = link or req.rid
        self._agent.start(
            key,
            outer_id=req.rid,
            role=self._role,
            prompt_tokens=prompt,
            first_forward=own if self._role == "decode" else 0,
            prompt_start=start if self._role != "decode" else None,
            engine_id=self._rendezvous(req) if link and self._role == "prefill" else None,
            remote_engine_id=self._rendezvous(req) if link and self._role == "decode" else None,
            remote_request_id=link if self._role == "decode" else None,
        )
        for first, part in known(rows, self._experts):
            self._agent.capture_step([key], [own + first], [0, len(part)], None, np.ascontiguousarray(part, self._width))
        # What a prefill has sampled is the first token of the decode's answer.
        if self._role != "prefill":
            self._agent.finish(key, completion_tokens=len(req.output_ids_through_stop))

    def _link(self, req) -> str | None:
        """By which both halves of a pair know a request: the room in which they hand over its KV."""
        if self._role == "colocated" or req.bootstrap_room is None:
            return None
        return f"room-{req.bootstrap_room}"

    @staticmethod
    def _rendezvous(req) -> str:
        return f"{req.bootstrap_host}:{req.bootstrap_port}"


def known(rows: np.ndarray, experts: int):
    """Runs of rows that are known, each with its index: SGLang writes -1 where it is not."""
    whole = ((rows >= 0) & (rows < experts)).all(axis=(1, 2))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], whole.view(np.int8), [0]))))
    for first, end in zip(edges[::2], edges[1::2]):
        yield int(first), rows[first:end]
