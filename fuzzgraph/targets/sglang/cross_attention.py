"""A backend's decodes of a model with an encoder: targets such as `sglang-fa3-cross`.

The second layer attends to the tokens of a request's encoder, whose slots lie in front of its own
in `req_to_token` (sglang `prepare_encoder_info_extend`). Pages have one token: the engine takes the
pages of a decode by its lengths, which leave the encoder out (`alloc_for_decode`), and text begins
anywhere in a page. No server has such a model behind a sliding window, which backends assert; none
of these models has data-parallel attention, dense layers apart from its ranks, or drafts.
"""

from __future__ import annotations

from dataclasses import replace

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend
from fuzzgraph.targets.sglang.cross_attention_model import CrossAttentionModel


def cross_attention(backend: AttentionBackend) -> AttentionBackend:
    """The same backend under a model that always has an encoder."""

    def refuses(config: EngineConfig) -> str | None:
        if not config.max_encoder_len:
            return "the model has an encoder: max_encoder_len must be positive"
        return backend.refuses(config)

    own = (
        ("encoder", True),
        ("encoder_only", True),
        ("prefix_beside_encoder", False),
        ("modes", ("decode",)),
        ("max_dp_size", 1),
        ("max_tp_size", 1),
    )
    return replace(
        backend,
        part=", a layer of cross attention",
        page_sizes=(1,),
        model=CrossAttentionModel,
        windows=False,
        caps=False,
        unified=False,
        beside=(),
        refuses=refuses,
        more=(*backend.more, *own),
    )
