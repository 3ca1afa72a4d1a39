"""Prefill/decode over NIXL: what vLLM refuses, made possible.

vLLM refuses to return routed experts on an engine with a NIXL connector, since (a) a decode would look for the rows of a prompt
that it never computed, and (b) it begins in the middle of a KV block, which the block buffer rejects. Three changes:

1. the configuration check does not see NIXL connectors; every other check runs;
2. the scheduler's side: a decode emits rows from its first forward on (`scheduler.py`);
3. the worker's side: the first block, known only in part, is neither buffered nor published (`partial_block.py`).
"""

from __future__ import annotations

import contextvars

from gatescope.vllm import log, versions
from gatescope.vllm.settings import Settings

NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")

# Set while the one check runs that must not see them.
_hidden = contextvars.ContextVar("gatescope_hidden", default=False)


def check() -> None:
    from vllm.config import KVTransferConfig, VllmConfig

    versions.expect(
        VllmConfig._verify_aux_output_compatibility,
        ["self"],
        "kv_transfer_config.has_connector(connector_name)",
        "PD auxiliary output is not supported",
        *NIXL,
    )
    versions.expect(KVTransferConfig.has_connector, ["self", "connector_name"], "MultiConnector")


def install(_: Settings) -> None:
    from vllm.config import KVTransferConfig, VllmConfig

    def blind(has_connector):
        def has_other_connector(self, connector_name):
            if _hidden.get() and connector_name in NIXL:
                return False
            return has_connector(self, connector_name)

        return has_other_connector

    def without_nixl(verify):
        def verify_without_nixl(self):
            if reads_back(self.kv_transfer_config):
                log.once("prefill/decode stays refused with bidirectional_kv_xfer: a prefill would miss the rows it reads back")
                return verify(self)
            token = _hidden.set(True)
            try:
                return verify(self)
            finally:
                _hidden.reset(token)

        return verify_without_nixl

    versions.replace(KVTransferConfig, "has_connector", blind)
    versions.replace(VllmConfig, "_verify_aux_output_compatibility", without_nixl)


def reads_back(config) -> bool:
    """Whether a prefill may take the KV of a conversation's earlier answer from a decode."""
    if config is None:
        return False
    children = config.kv_connector_extra_config.get("connectors", [])
    extras = [config.kv_connector_extra_config, *(child.get("kv_connector_extra_config", {}) for child in children)]
    return any(extra.get("bidirectional_kv_xfer") for extra in extras)


def is_remote_decode(params: dict | None) -> bool:
    """Whether a request's KV comes from another engine."""
    return bool(params) and bool(params.get("remote_engine_id")) and not params.get("do_remote_decode")


def is_remote_prefill(params: dict | None) -> bool:
    """Whether a request's KV goes to another engine."""
    return bool(params) and bool(params.get("do_remote_decode"))
