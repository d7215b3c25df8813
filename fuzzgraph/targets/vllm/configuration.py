"""vLLM's own configuration of a case: what a server would be started with."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import VOCAB

ARCHITECTURE = "FuzzGraphOneLayer"
"""Name under which the model is registered, as a plug-in registers one."""


def vllm_config(config: EngineConfig) -> Any:
    """Full decode graphs of the case's sizes, without the compiler, one rank, no async scheduling.

    A model may be one token longer than the case's longest request: its sampler writes that token.
    """
    module = engine_module("vllm.config")
    model = _model_folder(config)
    longest, requests = max_model_len(config), config.req_pool_size
    cache = call_with_known(
        module.CacheConfig,
        block_size=config.page_size,
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
    )
    compilation = call_with_known(
        module.CompilationConfig,
        mode=0,
        cudagraph_mode=module.CUDAGraphMode.FULL_DECODE_ONLY,
        cudagraph_capture_sizes=list(config.capture_bs),
        cudagraph_num_of_warmups=1,
        custom_ops=["none"],  # layers in torch, which has no compiled operator to call
        ir_enable_torch_wrap=False,
    )
    return module.VllmConfig(
        model_config=module.ModelConfig(
            model=model,
            tokenizer=model,
            skip_tokenizer_init=True,
            dtype=config.dtype,
            max_model_len=longest,
            seed=0,
        ),
        cache_config=cache,
        scheduler_config=module.SchedulerConfig(
            max_num_batched_tokens=max(longest, requests),
            max_num_seqs=requests,
            max_model_len=longest,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        parallel_config=module.ParallelConfig(),
        load_config=module.LoadConfig(load_format="dummy", use_tqdm_on_load=False),
        compilation_config=compilation,
    )


def max_model_len(config: EngineConfig) -> int:
    """Tokens of the longest request that the server takes."""
    return config.max_context_len + 1


def _model_folder(config: EngineConfig) -> str:
    described = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": config.num_q_heads * config.head_dim,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_q_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1 << 17,
        "torch_dtype": config.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return _written(json.dumps(described))


@functools.cache
def _written(text: str) -> str:
    """A folder with this model description, for the life of the process."""
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    (folder / "config.json").write_text(text, encoding="utf-8")
    return str(folder)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzzgraph-vllm-")
