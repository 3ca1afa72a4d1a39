"""The vLLM plugin: rows out of a running engine, also where it is one half of a prefill/decode pair.

vLLM calls `register` in each of its processes. Without `GATESCOPE_COLLECTOR` it does nothing. With it, some methods of vLLM are
wrapped, all of them or none: only where vLLM's version and code are what this plugin was checked against. Else vLLM is left as
it is, and the log says why.
"""

from __future__ import annotations

from gatescope.vllm import log
from gatescope.vllm.settings import Settings


def register() -> None:
    """Called by vLLM (entry point `vllm.general_plugins`). Never raises."""
    try:
        settings = Settings.from_environment()
        if settings is None:
            return
        from gatescope.vllm import versions

        reason = versions.unsupported()
        if reason is not None:
            log.once(f"stands back, vLLM stays as it is: {reason}")
            return
        from gatescope.vllm import pair, scheduler, worker

        parts = (scheduler, worker, pair)
        try:
            for part in parts:
                part.check()
        except LookupError as error:
            log.once(f"stands back, vLLM stays as it is, since its code is another: {error}")
            return
        for part in parts:
            part.install(settings)
    except Exception as error:  # An engine starts whatever a plugin does.
        log.once(f"stands back after {type(error).__name__}: {error}")
