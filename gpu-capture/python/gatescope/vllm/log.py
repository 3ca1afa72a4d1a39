"""What the plugin has to say, each thing once."""

from __future__ import annotations

import logging
import threading

_logger = logging.getLogger("vllm.gatescope")
_said: set[str] = set()
_lock = threading.Lock()
_MOST = 64


def once(message: str, level: int = logging.WARNING) -> None:
    """Logs a message the first time, beside vLLM's own."""
    with _lock:
        if message in _said or len(_said) >= _MOST:
            return
        _said.add(message)
    _logger.log(level, "gatescope: %s", message)
