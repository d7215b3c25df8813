"""Two-batch overlap: a model computes each half of a batch on an attention backend of its own.

Servers that exchange tokens between experts have it (`--enable-two-batch-overlap`): while one half
of a batch waits for its experts, the other one computes. Real here: the backend that holds one for
the whole batch and one for each half, the agreement of ranks, the cut, by the runner of graphs or
by what pads a batch without one, and the code that runs the operations of a model on both halves.
Ours are the operations: attention alone, without the exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import Batch

ARGUMENTS = {"enable_two_batch_overlap": True, "moe_a2a_backend": "deepep"}
"""Of a server; without an exchange between experts it refuses to start (server_args.py)."""

_BACKEND = "sglang.srt.layers.attention.tbo_backend"
_CUT = "sglang.srt.batch_overlap.two_batch_overlap"
_INFO = "sglang.srt.model_executor.forward_batch_info"
_OPERATIONS = "sglang.srt.batch_overlap.operations"
_SETTINGS = "sglang.srt.layers.moe.utils"

Attend = Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]
"""Token ids, positions and the engine's batch -> [tokens, columns]."""


def arguments(config: EngineConfig) -> dict[str, Any]:
    """Of a server with this config, beyond those of any."""
    return dict(ARGUMENTS) if config.two_batch_overlap else {}


def open_backends(config: EngineConfig, opened: Callable[[], Any]) -> Any:
    """The backend that `opened` gives; where batches are cut, the engine's own over three."""
    if not config.two_batch_overlap:
        return opened()
    return engine_module(_BACKEND).TboAttnBackend.init_new(opened)


def follow_arguments(server_args: Any) -> None:
    """Make what experts are set to in this process follow the server arguments, as a server's
    scheduler does when it starts."""
    call_with_known(engine_module(_SETTINGS).initialize_moe_config, server_args=server_args)


def agree_on_halves(forward_batch: Any, batch: Batch) -> None:
    """Says in the engine's batch where it is cut, as the scheduler does behind the exchange of what
    ranks have (sglang prepare_mlp_sync_batch_raw). Before a verify its batch decodes."""
    modes = engine_module(_INFO).ForwardMode
    local = None  # an idle batch is made behind the exchange
    if batch.raw_bs:
        local = Stub(
            forward_mode=modes.DECODE,
            spec_info=None,
            batch_size=lambda: batch.raw_bs,
            is_extend_in_batch=False,
            extend_num_tokens=None,
            extend_lens=None,
        )
    agreed = engine_module(_CUT).TboDPAttentionPreparer()
    can_overlap, _ = agreed.prepare_all_gather(local)
    ranks = [
        [int(can_overlap), (modes.DECODE if rows else modes.IDLE).value]
        for rows in batch.rank_sizes
    ]
    index, mode = agreed.compute_output(torch.tensor(ranks))
    forward_batch.tbo_split_seq_index = index
    forward_batch.global_forward_mode = mode


def attend_in_halves(
    attend: Attend,
    nothing: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    batch: Any,
) -> torch.Tensor:
    """[tokens, columns] of a batch that the engine has cut, each half computed by itself.

    Token ids take the place of hidden states: the engine cuts them, and pads them for its ranks.

    Args:
        attend: computes one half.
        nothing: [0, columns], what it gives for a half without tokens, from which models leave
            attention out (sglang deepseek_v2.py, forward_prepare).
        input_ids, positions: [tokens] of the whole batch.
        batch: the engine's own.
    """  # fmt: skip
    cut, operations = engine_module(_CUT), engine_module(_OPERATIONS)
    halves = cut._model_forward_tbo_split_inputs_raw(
        hidden_states=input_ids,
        residual=None,
        positions=positions,
        forward_batch=batch,
        zero_allocator=None,
    )

    def op_attend(
        state: Any, hidden_states: Any, positions: Any, forward_batch: Any, **_: Any
    ) -> dict[str, Any]:
        some = len(hidden_states) > 0
        attended = attend(hidden_states, positions, forward_batch) if some else nothing
        return {"hidden_states": attended, "forward_batch": forward_batch, "residual": None}

    outputs = operations.execute_overlapped_operations(
        inputs_arr=halves, operations_arr=[[op_attend]] * 2, delta_stages=[0, 0]
    )
    whole: torch.Tensor
    if hasattr(cut, "_model_forward_tbo_merge_key"):
        whole = cut._model_forward_tbo_merge_key(*outputs, "hidden_states", len(input_ids))
    else:
        whole = cut._model_forward_tbo_merge_outputs(*outputs, len(input_ids))[0]
    return whole
