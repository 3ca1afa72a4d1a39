"""Prefill/decode over NIXL: what vLLM refuses, made possible.

vLLM refuses to return routed experts on an engine with a NIXL connector, since (a) a decode would look for the rows of a prompt
that it never computed, and (b) it begins in the middle of a KV block, which the block buffer rejects. Three changes:

1. the configuration check does not see NIXL connectors; every other check runs;
2. the scheduler's side: a decode emits rows from its first forward on (`scheduler.py`);
3. the worker's side: the first block, known only in part, is neither buffered nor published (`worker.py`).
"""

from __future__ import annotations

import contextvars
import functools

from gatescope.vllm import log, versions

NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
_MARK = "_gatescope"

# Set while the one check runs that must not see them.
_hidden = contextvars.ContextVar("gatescope_hidden", default=False)


def install() -> None:
    from vllm.config import KVTransferConfig, VllmConfig

    check = VllmConfig._verify_aux_output_compatibility
    if hasattr(check, _MARK):
        return
    try:
        versions.expect(check, ["self"], "PD auxiliary output is not supported", "has_connector", *NIXL)
        versions.expect(KVTransferConfig.has_connector, ["self", "connector_name"])
    except LookupError as error:
        log.once(f"prefill/decode over NIXL stays refused, this vLLM differs: {error}")
        return
    has_connector = KVTransferConfig.has_connector

    @functools.wraps(has_connector)
    def has_other_connector(self, connector_name):
        if _hidden.get() and connector_name in NIXL:
            return False
        return has_connector(self, connector_name)

    @functools.wraps(check)
    def check_without_nixl(self):
        token = _hidden.set(True)
        try:
            return check(self)
        finally:
            _hidden.reset(token)

    setattr(check_without_nixl, _MARK, True)
    KVTransferConfig.has_connector = has_other_connector
    VllmConfig._verify_aux_output_compatibility = check_without_nixl


def is_remote_decode(params: dict | None) -> bool:
    """Whether a request's KV comes from another engine."""
    return bool(params) and bool(params.get("remote_engine_id")) and not params.get("do_remote_decode")


def is_remote_prefill(params: dict | None) -> bool:
    """Whether a request's KV goes to another engine."""
    return bool(params) and bool(params.get("do_remote_decode"))
