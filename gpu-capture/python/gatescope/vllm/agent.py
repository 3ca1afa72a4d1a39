"""The agent of this process."""

from __future__ import annotations

import atexit
import os
import re

from gatescope._agent import Agent
from gatescope.vllm import identity, log
from gatescope.vllm.settings import Settings


def start(settings: Settings, vllm_config, block_size: int) -> Agent | None:
    """Starts the agent; `None` where it cannot."""
    instance = identity.instance(vllm_config, settings.instance)
    spool = settings.spool and os.path.join(settings.spool, re.sub(r"[^\w.-]", "_", instance))
    try:
        agent = Agent(
            settings.collector,
            instance=instance,
            role=settings.role or "colocated",
            run=settings.run,
            model=_served_name(vllm_config),
            token=settings.token,
            spool=spool,
            block_size=block_size,
        )
    except (ValueError, OSError) as error:
        log.once(f"captures nothing: {error}")
        return None
    atexit.register(agent.close, 3.0)
    log.once(f"captures as {instance}, run {settings.run}, for {settings.collector}", level=20)
    return agent


def _served_name(vllm_config) -> str:
    served = vllm_config.model_config.served_model_name
    return served[0] if isinstance(served, list) else served or vllm_config.model_config.model
