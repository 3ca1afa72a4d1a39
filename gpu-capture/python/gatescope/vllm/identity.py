"""Names: of requests inside and outside of vLLM, and of engines."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

# The outer id comes as `cmpl-<outer>`; inside, vLLM appends `-<index of the prompt>` for completions and 8 hex digits, and puts
# `<index>_` in front where several sequences are sampled (vLLM 0.31: entrypoints, v1/engine/input_processor.py, parallel_sampling.py).
_CHOICE = re.compile(r"^(\d+)_(?=cmpl-|chatcmpl-|generate-tokens-)")
_PREFIX = re.compile(r"^(cmpl-|chatcmpl-|generate-tokens-)")
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_PROMPT = re.compile(r"-(\d+)$")


class OuterId(NamedTuple):
    request_id: str
    choice: int


def outer_id(inner: str) -> OuterId:
    """The id that the client gave, of one that vLLM uses inside.

    >>> outer_id("cmpl-abc-0-85eeda8a")
    OuterId(request_id='abc', choice=0)
    """
    choice = 0
    if match := _CHOICE.match(inner):
        choice, inner = int(match[1]), inner[match.end() :]
    inner = _SUFFIX.sub("", inner)
    match = _PREFIX.match(inner)
    if match is None:
        return OuterId(inner, choice)
    outer = inner[match.end() :]
    if match[1] == "cmpl-" and (prompt := _PROMPT.search(outer)):
        outer = outer[: prompt.start()]
        # Several prompts of one call are told apart as several sequences of one prompt are.
        choice += int(prompt[1])
    return OuterId(outer or inner, choice)


def engine_id(vllm_config) -> str | None:
    """By which another engine's requests name this one; `None` where it transfers no KV."""
    transfer = vllm_config.kv_transfer_config
    return None if transfer is None else transfer.engine_id


def instance(vllm_config, given: str | None) -> str:
    """Engine and data-parallel rank."""
    name = given or engine_id(vllm_config)
    parallel = vllm_config.parallel_config
    if name is None:
        name = f"{socket.gethostname()}-{vllm_config.instance_id}"
    if parallel.data_parallel_size > 1 and not re.search(r"_dp\d+$", name):
        name = f"{name}_dp{parallel.data_parallel_rank}"
    return name
