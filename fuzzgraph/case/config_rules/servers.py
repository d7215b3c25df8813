"""How a server shares its work out: over ranks, halves of a batch and backends."""

from __future__ import annotations

from fuzzgraph.case.config_rules.beside import set_among
from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import SPEC_MODES, EngineConfig, Mode


def check_ranks(config: EngineConfig) -> None:
    """A rank is one of its group, and what counts tokens of a rank has several."""
    for kind in ("attn_tp", "dp", "ep"):
        rank, size = getattr(config, f"{kind}_rank"), getattr(config, f"{kind}_size")
        if rank >= size:
            refuse(
                f"config.{kind}_rank", rank, f"must be below {kind}_size={size}", "Lower the rank."
            )
    if config.row_mixing == "router" and config.attn_tp_size == 1:
        refuse(
            "config.row_mixing",
            "router",
            "counts the tokens of one of several ranks; got attn_tp_size=1",
            "Raise attn_tp_size, or choose another row_mixing.",
        )
    mixed = config.row_mixing != "none" or config.modes != ("prefill",)
    if config.dp_size > 1 and "prefill" in config.modes and mixed:
        refuse(
            "config.dp_size",
            config.dp_size,
            "counts tokens of prefills where nothing else is captured, and rows stay apart; got "
            f"modes {list(config.modes)} and row_mixing={config.row_mixing!r}",
            "Use modes=['prefill'] and row_mixing='none', or dp_size=1.",
        )


def check_even_ranks(config: EngineConfig) -> None:
    """Source: sglang dp_attention.py, `get_dp_padding_mode`, of pplx. What such ranks make prompts
    of is computed in chunks, by kernels for half precision (fla/chunk.py)."""
    whole = config.dtype == "float32"
    if config.even_ranks and (config.dp_size == 1 or config.modes != ("decode",) or whole):
        refuse(
            "config.even_ranks",
            True,
            "needs several data-parallel ranks, modes=['decode'] and half precision; got "
            f"dp_size={config.dp_size}, {list(config.modes)} and dtype={config.dtype!r}",
            "Change them, or drop it.",
        )


def check_all_reduce(config: EngineConfig) -> None:
    """Source: sglang dp_attention.py, `_decode_sum_len_fits_custom_all_reduce`."""
    if config.all_reduce_kib and (config.dp_size == 1 or config.modes != ("decode",)):
        refuse(
            "config.all_reduce_kib",
            config.all_reduce_kib,
            "needs several data-parallel ranks and modes=['decode']; got "
            f"dp_size={config.dp_size} and {list(config.modes)}",
            "Change them, or use 0.",
        )


_RETURNED_IN: dict[str, tuple[Mode, ...]] = {
    "full": ("decode", "prefill"),
    "last": ("decode", "prefill"),
    "aux": ("target_verify", "prefill"),
}
"""Hidden states that a model hands out, and in which modes it is a question whether it does."""


def hands_out(kind: str, modes: tuple[Mode, ...]) -> bool:
    """Whether a model with graphs of these modes may hand out hidden states of a kind."""
    among = _RETURNED_IN.get(kind)
    return among is None or modes in [(mode,) for mode in among]


def check_returned_hidden(config: EngineConfig) -> None:
    """Servers return those of decodes and prefills, and EAGLE-3 reads those of verifies and
    prefills."""
    if not hands_out(config.returned_hidden, config.modes):
        among = _RETURNED_IN[config.returned_hidden]
        needed = " or ".join(f"modes=[{mode!r}]" for mode in among)
        refuse(
            "config.returned_hidden",
            config.returned_hidden,
            f"needs {needed}; got {list(config.modes)}",
            "Change one of them, or use 'none'.",
        )


def check_gathered_logits(config: EngineConfig) -> None:
    """Ranks that share a head have as many logits each, of a vocabulary padded to whole blocks of
    64 (sglang vocab_parallel_embedding.py)."""
    ranks = config.dp_size
    if config.gathered_logits and (ranks == 1 or 64 % ranks):
        refuse(
            "config.gathered_logits",
            True,
            f"needs 2 or more data-parallel ranks, a divisor of 64; got dp_size={ranks}",
            "Change it, or drop it.",
        )


WHOLE_BATCHES = (
    "virtual_pages", "max_encoder_len", "recurrent_state", "later_stage", "max_loras",
    "ngram_drafts", "draft_adapter", "attention_chunk_size", "num_experts", "row_mixing",
    "drafted_blocks",
)  # fmt: skip
"""Dimensions that no engine has, or no target drives, where batches are cut in two."""


def check_two_batches(config: EngineConfig) -> None:
    """Batches are cut in two where experts are spread over ranks that compute other tokens.

    Source: sglang server_args.py asks for an exchange between experts; kv_cache_hook.py (unified
    memory), tbo_backend.py (encoders) and lora_hook.py refuse batches that are cut.
    """
    if not config.two_batch_overlap:
        return
    others = set_among(config, WHOLE_BATCHES)
    if config.dp_size == 1 or others:
        refuse(
            "config.two_batch_overlap",
            True,
            "needs several data-parallel ranks and layers that attend alone; got "
            + ", ".join(f"{name}={getattr(config, name)}" for name in ("dp_size", *others)),
            "Change them, or drop it.",
        )


def check_backends(config: EngineConfig) -> None:
    """Decodes and verifies run on one of two backends; which one verifies, a server chooses."""
    one_mode = config.modes in (("decode",), ("target_verify",))
    if config.backend_beside != "none" and not one_mode:
        refuse(
            "config.backend_beside",
            config.backend_beside,
            f"needs modes=['decode'] or ['target_verify']; got {list(config.modes)}",
            "Change them, or use 'none'.",
        )
    apart = config.backend_beside != "none" and config.modes == ("target_verify",)
    if config.verifies_as_prefill and not apart:
        refuse(
            "config.verifies_as_prefill",
            True,
            "needs modes=['target_verify'] and a backend for decodes; got "
            f"{list(config.modes)} and backend_beside={config.backend_beside!r}",
            "Change them, or drop it.",
        )


def check_later_stage(config: EngineConfig) -> None:
    """Servers with a pipeline take no drafts; layers of one kind alone are numbered on."""
    if not config.later_stage:
        return
    beside = ("swa_window", "max_encoder_len", "recurrent_state", "virtual_pages")
    others = [name for name in beside if getattr(config, name)]
    if others or set(config.modes) & set(SPEC_MODES):
        refuse(
            "config.later_stage",
            True,
            f"needs modes without drafts and layers of one kind; got {list(config.modes)}"
            + "".join(f", {name}={getattr(config, name)}" for name in others),
            "Change them, or drop it.",
        )
