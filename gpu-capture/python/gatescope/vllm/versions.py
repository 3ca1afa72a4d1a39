"""Which vLLM this is, and whether the plugin knows it."""

from __future__ import annotations

import functools
import inspect
import re

OLDEST = (0, 31)
NEWEST = (0, 33)

# Set on each method that wraps one of vLLM's.
_MARK = "_gatescope"


def unsupported(version: str | None = None) -> str | None:
    """Why this vLLM is none that the plugin knows; `None` where it is one."""
    if version is None:
        import vllm

        version = vllm.__version__
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return f"vLLM {version!r} has no version number"
    if not OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        return f"vLLM {version}: the plugin knows 0.31 to 0.33"
    return None


def expect(function, wanted: list[str], *words: str) -> None:
    """Raises where a function has other parameters than wanted, or lacks words in its code: it is not the one known."""
    name = getattr(function, "__qualname__", repr(function))
    if hasattr(function, _MARK):
        return
    found = list(inspect.signature(function).parameters)
    if found != wanted:
        raise LookupError(f"{name} takes {', '.join(found)}; expected {', '.join(wanted)}")
    try:
        source = inspect.getsource(function)
    except OSError as error:
        raise LookupError(f"{name} has no source to compare: {error}") from None
    for word in words:
        if word not in source:
            raise LookupError(f"{name} has no {word!r} in it")


def replace(owner: type, name: str, wrapper) -> None:
    """Puts `wrapper(original)` in the place of a method, once."""
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)
