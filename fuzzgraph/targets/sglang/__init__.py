"""Real sglang, from a released wheel, behind the ports; README.md has a table of what is driven.

Nothing here imports sglang when it is imported; `release` does so when a target opens.
"""

from __future__ import annotations

from fuzzgraph.targets.entry import TargetEntry

__all__ = ["TARGETS"]


_GLUED = ("aiter", "fa3", "fa3-mla", "flashmla", "nsa", "triton", "trtllm-mha", "trtllm-mla")
"""Backends whose preparation of metadata can be captured."""

_BLOCK_BACKENDS = ("fa3", "fa4", "flashinfer", "triton", "trtllm-mha")
"""Backends on which models draft and verify whole blocks."""


def _row(name: str, module: str, factory: str, releases: str = "", **arguments: str) -> TargetEntry:
    return TargetEntry(f"sglang-{name}", f"sglang.{module}", factory, arguments, releases)


TARGETS = (
    _row("aiter", "backends.aiter", "target", mode="decode"),
    _row("aiter-verify", "backends.aiter", "target", mode="target_verify"),
    _row("breakable-prefill", "runners.prefill", "PrefillTarget", kind="breakable",
         releases="0.5.11 on"),
    _row("buffers", "runners.decode_input_buffers", "BufferTarget", mode="decode"),
    _row("buffers-verify", "runners.decode_input_buffers", "BufferTarget", mode="target_verify"),
    _row("cpu-graph", "runners.cpu_graph_runner", "CpuGraphTarget", releases="0.5.10 on"),
    _row("aiter-draft-extend", "backends.draft_extend", "DraftExtendTarget", backend="aiter",
         releases="0.5.13 on"),
    *(
        _row(f"dflash-draft-{backend}", "runners.dflash", "BlockDraftTarget", backend=backend,
             releases="0.5.16 on")
        for backend in _BLOCK_BACKENDS
    ),
    *(
        _row(f"dflash-verify-{backend}", "runners.dflash_verify", "BlockVerifyTarget",
             backend=backend, releases="0.5.16 on")
        for backend in _BLOCK_BACKENDS
    ),
    *(
        _row(f"dspark-draft-{backend}", "runners.dspark", "DSparkDraftTarget", backend=backend,
             releases="0.5.16 on")
        for backend in _BLOCK_BACKENDS
    ),
    *(
        _row(f"dspark-verify-{backend}", "runners.dspark_verify", "DSparkVerifyTarget",
             backend=backend, releases="0.5.16 on")
        for backend in _BLOCK_BACKENDS
    ),
    _row("dsv4", "backends.dsv4", "Dsv4Target", mode="decode", releases="0.5.12 on"),
    _row("dsv4-verify", "backends.dsv4", "Dsv4Target", mode="target_verify",
         releases="0.5.12 on"),
    _row("dsv4-draft", "backends.dsv4_draft", "Dsv4DraftTarget", releases="0.5.13 on"),
    _row("dsv4-draft-extend", "backends.dsv4_draft", "Dsv4DraftExtendTarget",
         releases="0.5.16 on"),
    _row("dsv4-prefill", "runners.dsv4_prefill", "Dsv4PrefillTarget", releases="0.5.13 on"),
    _row("dsv41", "backends.dsv41", "Dsv41Target", mode="decode", releases="0.5.21 on"),
    _row("dsv41-verify", "backends.dsv41", "Dsv41Target", mode="target_verify",
         releases="0.5.21 on"),
    _row("draft-prefill", "runners.draft_prefill", "DraftPrefillTarget", releases="0.5.16 on"),
    _row("eagle-draft", "runners.eagle_draft", "DraftTarget", kind="draft"),
    _row("eagle-draft-extend", "runners.eagle_draft", "DraftTarget", kind="draft_extend"),
    _row("fa3-mla-draft-extend", "backends.draft_extend", "DraftExtendTarget",
         backend="fa3-mla", releases="0.5.13 on"),
    _row("flashinfer-draft-extend", "backends.draft_extend", "DraftExtendTarget",
         backend="flashinfer", releases="0.5.19 on"),
    _row("flashmla-draft-extend", "backends.draft_extend", "DraftExtendTarget", backend="flashmla",
         releases="0.5.19 on"),
    _row("nsa-draft-extend", "backends.draft_extend", "DraftExtendTarget", backend="nsa",
         releases="0.5.15 on"),
    *(
        _row(f"{backend}-draft", "backends.stepwise_draft", "StepwiseDraftTarget", backend=backend)
        for backend in ("flashmla", "nsa", "trtllm-mla")
    ),
    *(
        _row(f"{backend}-draft", "backends.stepwise_draft", "StepwiseDraftTarget", backend=backend,
             releases="0.5.12 on")
        for backend in ("fa3-mla", "trtllm-mha")
    ),
    _row("aiter-draft", "backends.aiter_draft", "AiterDraftTarget", releases="0.5.12 on"),
    _row("flashinfer-mla-draft", "backends.flashinfer_mla_draft", "FlashInferMlaDraftTarget",
         releases="0.5.12 on"),
    _row("triton-draft", "backends.triton_draft", "TritonDraftTarget"),
    _row("triton-draft-extend", "backends.draft_extend", "DraftExtendTarget", backend="triton",
         releases="0.5.13 on"),
    _row("trtllm-mha-draft-extend", "backends.draft_extend", "DraftExtendTarget",
         backend="trtllm-mha", releases="0.5.13 on"),
    _row("trtllm-mla-draft-extend", "backends.draft_extend", "DraftExtendTarget",
         backend="trtllm-mla", releases="0.5.13 on"),
    _row("flashinfer-draft", "backends.flashinfer_draft", "FlashInferDraftTarget"),
    _row("full-prefill", "runners.full_prefill", "FullPrefillTarget", releases="0.5.15 on"),
    _row("full-prefill-mla", "runners.latent_prefill", "LatentPrefillTarget",
         releases="0.5.17 on"),
    _row("full-prefill-deepseek", "runners.deepseek_prefill", "DeepseekPrefillTarget",
         releases="0.5.17 on"),
    _row("frozen-kv-mtp", "runners.eagle_draft", "DraftTarget", kind="frozen",
         releases="0.5.12 on"),
    _row("multi-layer-draft-extend", "backends.multi_layer", "LayersTarget", backend="fa3"),
    _row("multi-layer-deepep", "backends.multi_layer", "LayersTarget", backend="triton",
         exchange="deepep", releases="0.5.16 on"),
    *(
        _row(f"{backend}-multi-layer", "backends.multi_layer", "LayersTarget",
             backend=backend, releases="0.5.15 on")
        for backend in ("triton", "trtllm-mha")
    ),
    _row("aiter-window", "backends.aiter", "WindowTarget", mode="decode", releases="0.5.10 on"),
    _row("aiter-window-verify", "backends.aiter", "WindowTarget", mode="target_verify",
         releases="0.5.13 on"),
    _row("cutlass-mla", "backends.cutlass_mla", "target", mode="decode",
         releases="0.5.9 to 0.5.19"),
    _row("fa3", "backends.fa3", "target", mode="decode"),
    _row("fa3-chunked", "backends.fa3", "chunked_target", mode="decode"),
    _row("fa3-chunked-verify", "backends.fa3", "chunked_target", mode="target_verify"),
    _row("fa3-cross", "backends.fa3", "cross_target", mode="decode", releases="0.5.13 on"),
    _row("fa3-mla", "backends.fa3", "mla_target", mode="decode"),
    _row("fa4", "backends.fa3", "fa4_target", mode="decode", releases="0.5.12 on"),
    _row("fa4-verify", "backends.fa3", "fa4_target", mode="target_verify", releases="0.5.12 on"),
    _row("flashinfer", "backends.flashinfer", "target", mode="decode"),
    _row("flashinfer-cross", "backends.flashinfer", "cross_target", mode="decode"),
    _row("flashinfer-mla", "backends.flashinfer_mla", "target", mode="decode"),
    _row("flashmla", "backends.flashmla", "target", mode="decode"),
    _row("gdn-prefill", "runners.hybrid_prefill", "DeltaNetPrefillTarget", releases="0.5.11 on"),
    _row("gdn-piecewise-prefill", "runners.hybrid_prefill", "DeltaNetPrefillTarget",
         kind="tc_piecewise", releases="0.5.9 to 0.5.21"),
    _row("gdn", "backends.gdn", "DeltaNetTarget", mode="decode"),
    _row("gdn-verify", "backends.gdn", "DeltaNetTarget", mode="target_verify"),
    _row("kda", "backends.kda", "ChannelDecayTarget", mode="decode", releases="0.5.10 on"),
    _row("kda-glm-prefill", "runners.hybrid_prefill", "FlatGatesPrefillTarget",
         releases="0.5.22 on"),
    _row("kda-piecewise-prefill", "runners.hybrid_prefill", "ChannelDecayPrefillTarget",
         kind="tc_piecewise", releases="0.5.17 to 0.5.21"),
    _row("kda-prefill", "runners.hybrid_prefill", "ChannelDecayPrefillTarget",
         releases="0.5.17 on"),
    _row("kda-verify", "backends.kda", "ChannelDecayTarget", mode="target_verify",
         releases="0.5.17 on"),
    _row("lightning", "backends.lightning", "LightningTarget", mode="decode",
         releases="0.5.18 on"),
    _row("lightning-verify", "backends.lightning", "LightningTarget", mode="target_verify",
         releases="0.5.23 on"),
    _row("lightning-prefill", "runners.hybrid_prefill", "LightningPrefillTarget",
         releases="0.5.18 on"),
    _row("lightning-piecewise", "runners.hybrid_prefill", "LightningPrefillTarget",
         kind="tc_piecewise", releases="0.5.18 to 0.5.21"),
    _row("logits", "backends.logits", "LogitsTarget", mode="decode", releases="0.5.12 on"),
    _row("logits-full-prefill", "runners.logits_prefill", "FullLogitsPrefillTarget",
         releases="0.5.16 on"),
    _row("logits-prefill", "runners.logits_prefill", "LogitsPrefillTarget", releases="0.5.12 on"),
    _row("logits-verify", "backends.logits", "LogitsTarget", mode="target_verify",
         releases="0.5.12 on"),
    _row("lora", "backends.lora", "LoraTarget", kernels="triton"),
    _row("lora-chunked", "backends.lora", "LoraTarget", kernels="csgmv"),
    _row("lora-v2", "backends.lora_v2", "LoraV2Target", releases="0.5.23 on"),
    _row("lora-v2-verify", "backends.lora_v2", "LoraV2Target", mode="target_verify",
         releases="0.5.23 on"),
    _row("lora-verify", "backends.lora", "LoraTarget", kernels="triton", mode="target_verify"),
    _row("lora-chunked-verify", "backends.lora", "LoraTarget", kernels="csgmv",
         mode="target_verify"),
    _row("mamba", "backends.mamba2", "Mamba2Target", mode="decode"),
    _row("mamba-falcon-prefill", "runners.hybrid_prefill", "FalconPrefillTarget",
         releases="0.5.11 on"),
    _row("mamba-prefill", "runners.hybrid_prefill", "Mamba2PrefillTarget", releases="0.5.11 on"),
    _row("mamba-piecewise-prefill", "runners.hybrid_prefill", "Mamba2PrefillTarget",
         kind="tc_piecewise", releases="0.5.10 to 0.5.21"),
    _row("mamba-verify", "backends.mamba2", "Mamba2Target", mode="target_verify"),
    _row("dots", "backends.dots", "DotsTarget", mode="decode", releases="0.5.19 on"),
    _row("dots-verify", "backends.dots", "DotsTarget", mode="target_verify", releases="0.5.19 on"),
    _row("dots-draft-extend", "backends.dots_draft_extend", "DotsDraftExtendTarget",
         releases="0.5.19 on"),
    _row("minicpm", "backends.minicpm", "MinicpmTarget", mode="decode", releases="0.5.19 on"),
    _row("minimax", "backends.minimax", "MinimaxTarget", mode="decode", releases="0.5.16 on"),
    _row("minimax-flashinfer", "backends.minimax", "MinimaxFlashInferTarget", mode="decode",
         releases="0.5.17 on"),
    _row("minimax-prefill", "runners.minimax_prefill", "MinimaxPrefillTarget",
         releases="0.5.22 on"),
    _row("minimax-triton", "backends.minimax_triton", "MinimaxTritonTarget", mode="decode",
         releases="0.5.16 on"),
    _row("minimax-verify", "backends.minimax_triton", "MinimaxTritonTarget",
         mode="target_verify", releases="0.5.22 on"),
    _row("moe", "backends.moe", "MoeTarget", mode="decode"),
    _row("moe-deepep", "backends.moe_deepep", "MoeDeepepTarget", releases="0.5.16 on"),
    _row("moe-deepseek", "backends.moe", "MoeTarget", mode="decode", family="deepseek",
         releases="0.5.21 on"),
    _row("moe-gpt-oss", "backends.moe", "MoeTarget", mode="decode", family="gpt-oss"),
    _row("moe-verify", "backends.moe", "MoeTarget", mode="target_verify"),
    _row("nsa", "backends.nsa", "target", mode="decode"),
    _row("qsa", "backends.qsa", "target", mode="decode", releases="0.5.20 on"),
    _row("qsa-draft", "backends.qsa_draft", "QsaDraftTarget", releases="0.5.20 on"),
    _row("qsa-draft-extend", "backends.qsa_draft_extend", "QsaDraftExtendTarget",
         releases="0.5.20 on"),
    _row("qsa-draft-prefill", "runners.qsa_draft_prefill", "QsaDraftPrefillTarget",
         releases="0.5.22 on"),
    _row("qsa-prefill", "runners.qsa_prefill", "QsaPrefillTarget", releases="0.5.22 on"),
    _row("qsa-verify", "backends.qsa", "target", mode="target_verify", releases="0.5.20 on"),
    _row("vit", "runners.vit", "VisionTarget", attention="triton", releases="0.5.12 on"),
    _row("vit-fa3", "runners.vit", "VisionTarget", attention="fa3", releases="0.5.12 on"),
    _row("short-conv", "backends.short_conv", "ShortConvTarget", mode="decode",
         releases="0.5.11 on"),
    _row("short-conv-prefill", "runners.eager_prefill", "ShortConvPrefillTarget",
         releases="0.5.19 on"),
    _row("short-conv-verify", "backends.short_conv", "ShortConvTarget", mode="target_verify",
         releases="0.5.19 on"),
    _row("uno", "runners.uno", "UnoTarget", releases="0.5.20 on"),
    _row("trtllm-mha", "backends.trtllm_mha", "target", mode="decode"),
    _row("trtllm-mla", "backends.trtllm_mla", "target", mode="decode"),
    _row("deepseek-mla", "backends.trtllm_mla", "deepseek_target", mode="decode",
         releases="0.5.12 on"),
    _row("fa3-verify", "backends.fa3", "target", mode="target_verify"),
    _row("fa3-mla-verify", "backends.fa3", "mla_target", mode="target_verify"),
    _row("flashinfer-verify", "backends.flashinfer", "target", mode="target_verify"),
    _row("flashinfer-mla-verify", "backends.flashinfer_mla", "target", mode="target_verify"),
    _row("flashmla-verify", "backends.flashmla", "target", mode="target_verify"),
    _row("nsa-verify", "backends.nsa", "target", mode="target_verify"),
    _row("trtllm-mha-verify", "backends.trtllm_mha", "target", mode="target_verify"),
    _row("trtllm-mla-verify", "backends.trtllm_mla", "target", mode="target_verify"),
    _row("deepseek-mla-verify", "backends.trtllm_mla", "deepseek_target",
         mode="target_verify", releases="0.5.12 on"),
    _row("piecewise-prefill", "runners.prefill", "PrefillTarget", kind="tc_piecewise",
         releases="0.5.9 to 0.5.21"),
    _row("triton", "backends.triton", "TritonTarget", mode="decode"),
    _row("triton-mla", "backends.triton", "TritonTarget", mode="decode", attention="mla"),
    _row("triton-mla-verify", "backends.triton", "TritonTarget", mode="target_verify",
         attention="mla"),
    _row("triton-verify", "backends.triton", "TritonTarget", mode="target_verify"),
    *(
        _row(f"{backend}-glue{suffix}", "backends.metadata_glue", "target", backend=backend,
             mode=mode, releases="0.5.19 on")
        for backend in _GLUED
        for suffix, mode in (("", "decode"), ("-verify", "target_verify"))
    ),
)  # fmt: skip
