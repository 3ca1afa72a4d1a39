"""Which layers of a model have a gate."""

from __future__ import annotations


def layers(model) -> list[int] | None:
    """Indices of the hidden layers whose routing is captured, from the modules themselves; `None` where none says."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner
    from vllm.model_executor.layers.fused_moe.routed_experts_capturer import RoutedExpertsCaptureSource

    sources = (module for module in model.modules() if isinstance(module, (RoutedExpertsCaptureSource, MoERunner)))
    return sorted({int(module.layer_id) for module in sources}) or None
