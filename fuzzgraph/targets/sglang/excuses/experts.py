"""Of experts behind attention, on the decode runner."""

from __future__ import annotations

from fuzzgraph.handover import Excuse

_IDS_OF_KERNELS = ("*.expert_ids", "*.experts_ids", "*.topk_ids")
EXCUSES: tuple[Excuse, ...] = (
    *(
        Excuse(
            name,
            "meaning",
            "sglang topk.py _mask_topk_ids_padded_region; token_dispatcher/standard.py dispatch",
            "numbers of experts, of which -1 is none; declared fields judge them",
        )
        for name in _IDS_OF_KERNELS
    ),
    *(
        Excuse(
            name,
            "live",
            "sglang forward_batch_info.py prepare_mlp_sync_batch: get_dp_padding_mode",
            "of tokens of all ranks, which lie elsewhere where ranks are padded otherwise; "
            "declared fields judge them",
            only_with="dp_size",
        )
        for name in _IDS_OF_KERNELS
    ),
)
