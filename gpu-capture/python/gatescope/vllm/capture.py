"""The agent of this process."""

from __future__ import annotations

import atexit
import functools
import os
import re
import threading

from gatescope._agent import Agent
from gatescope.vllm import identity, log
from gatescope.vllm.settings import Settings

_lock = threading.Lock()
_agents: dict[str, Agent] = {}


def agent(settings: Settings, vllm_config, side: str, block_size: int) -> Agent | None:
    """The agent for this engine; the first of the two sides that asks starts it. `None` where it cannot start."""
    instance = identity.instance(vllm_config, settings.instance)
    with _lock:
        if instance in _agents:
            return _agents[instance]
        name = f"{instance}/{side}"
        spool = settings.spool and os.path.join(settings.spool, re.sub(r"[^\w.-]", "_", name))
        try:
            started = Agent(
                settings.collector,
                instance=instance,
                role=settings.role or "colocated",
                run=settings.run,
                model=_served_name(vllm_config),
                agent=name,
                token=settings.token,
                spool=spool,
                block_size=block_size,
            )
        except (ValueError, OSError) as error:
            log.once(f"captures nothing: {error}")
            return None
        _agents[instance] = started
    atexit.register(started.close, 5.0)
    log.once(f"captures as {instance}, run {settings.run}, for {settings.collector}", level=20)
    return started


def _served_name(vllm_config) -> str:
    served = vllm_config.model_config.served_model_name
    return served[0] if isinstance(served, list) else served or vllm_config.model_config.model


def harmless(method):
    """A method that never raises: what goes wrong in it is logged once, and the engine goes on."""

    @functools.wraps(method)
    def guarded(*arguments, **named):
        try:
            return method(*arguments, **named)
        except Exception as error:
            log.once(f"{method.__qualname__} failed with {type(error).__name__}: {error}")
            return None

    return guarded
