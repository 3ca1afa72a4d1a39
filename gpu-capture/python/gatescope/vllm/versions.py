"""Which vLLM this is, and whether the plugin knows it."""

from __future__ import annotations

import inspect
import re

OLDEST = (0, 31)
NEWEST = (0, 33)


def unsupported() -> str | None:
    """Why this vLLM is none that the plugin knows; `None` where it is one."""
    import vllm

    match = re.match(r"(\d+)\.(\d+)", vllm.__version__)
    if match is None:
        return f"vLLM {vllm.__version__!r} has no version number"
    version = (int(match[1]), int(match[2]))
    if not OLDEST <= version <= NEWEST:
        return f"vLLM {vllm.__version__}: the plugin knows 0.31 to 0.33"
    return None


def parameters(function) -> list[str]:
    """Names of a function's parameters."""
    return list(inspect.signature(function).parameters)


def expect(function, wanted: list[str], *words: str) -> None:
    """Raises where a function has other parameters than wanted, or lacks words in its code: it is not the one known."""
    name = getattr(function, "__qualname__", repr(function))
    found = parameters(function)
    if found != wanted:
        raise LookupError(f"{name} takes {', '.join(found)}; expected {', '.join(wanted)}")
    source = inspect.getsource(function)
    for word in words:
        if word not in source:
            raise LookupError(f"{name} has no {word!r} in it")
