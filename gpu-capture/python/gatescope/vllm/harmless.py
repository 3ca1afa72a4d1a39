"""What keeps a fault of the plugin from being one of the engine."""

from __future__ import annotations

import functools

from gatescope.vllm import log


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
