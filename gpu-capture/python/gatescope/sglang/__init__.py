"""The SGLang hook: routing of finished requests out of a running engine.

SGLang calls `register` in each of its processes (entry point `sglang.srt.plugins`). Without `GATESCOPE_COLLECTOR` it does nothing. SGLang
captures rows itself (`--enable-return-routed-experts`), for requests that ask for them (`return_routed_experts`), and gathers a request's
rows once it has ended: that is where the hook takes them, on prefill, decode and colocated engines.
"""

from __future__ import annotations

from gatescope.sglang.rows import Reporter
from gatescope.vllm import log, versions
from gatescope.vllm.settings import Settings

_WORDS = ("req.routed_experts = capturer.get_topk(", "start_len = req.routed_experts_start_len", "output_ids_through_stop")


def register() -> None:
    """Never raises."""
    try:
        settings = Settings.from_environment()
        if settings is None:
            return
        from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor as Processor

        try:
            versions.expect(Processor._maybe_collect_routed_experts, ["self", "req"], *_WORDS)
        except LookupError as error:
            log.once(f"stands back, SGLang stays as it is: {error}")
            return
        versions.replace(Processor, "_maybe_collect_routed_experts", lambda collect: _reporting(collect, settings))
    except Exception as error:  # An engine starts whatever a plugin does.
        log.once(f"stands back after {type(error).__name__}: {error}")


def _reporting(collect, settings: Settings):
    reporters: dict[int, Reporter | None] = {}

    def collect_and_report(self, req):
        collect(self, req)
        try:
            if req.routed_experts is None:
                return
            if id(self) not in reporters:
                reporters[id(self)] = _reporter(self, settings)
            reporter = reporters[id(self)]
            if reporter is not None:
                reporter.report(req)
        except Exception as error:  # The engine goes on.
            log.once(f"a request was not captured: {type(error).__name__}: {error}")

    return collect_and_report


def _reporter(processor, settings: Settings) -> Reporter | None:
    """`None` on all tensor-parallel ranks but the first: they have the same rows."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if parallel.attn_tp_rank != 0:
        return None
    return Reporter.start(
        settings,
        config=processor.model_config.hf_text_config,
        model=processor.model_config.model_path,
        mode=processor.disaggregation_mode.value,
        rank=parallel.attn_dp_rank if parallel.num_dp_ranks > 1 else None,
    )
