"""The features of a swarm: what each changes in a config, within a target's capabilities.

How features are combined, and made to agree, is `configs`' job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Mode
from fuzzgraph.strategies.profile import Profile
from fuzzgraph.strategies.splitmix import Chance

__all__ = ["FEATURES", "SPEC_MODES", "Fields", "base_fields"]

Fields = dict[str, Any]
T = TypeVar("T")

SPEC_MODES: frozenset[Mode] = frozenset(("target_verify", "draft_extend", "draft"))
_CORE = 78
"""Percent of configs that vary a core feature (modes, ladder, pages, context, spec shape)."""
_LADDERS: tuple[tuple[int, ...], ...] = (
    (1,), (2,), (1, 2), (4,), (1, 4), (2, 4), (1, 2, 4), (8,), (3, 8), (1, 8), (2, 3, 5),
    (1, 2, 4, 8), (6, 12), (4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8), (2, 4, 12), (16, 32), (64, 128),
)  # fmt: skip
_TOKEN_LADDERS: tuple[tuple[int, ...], ...] = (
    (4,), (8,), (1, 2, 4, 8), (4, 8, 16), (6, 12), (3, 10), (16,), (8, 32),
)  # fmt: skip
_HEADS = ((2, 2), (2, 1), (4, 2), (4, 1), (3, 1), (4, 4))
_HEAD_DIMS = ((8, 8), (8, 4), (4, 8), (16, 16), (16, 8))


def _within(choices: Sequence[T], wanted: T) -> T:
    """`wanted` where the target has it, else what it has first."""
    return wanted if wanted in choices else choices[0]


def _others(choices: Sequence[T], simplest: T) -> list[T]:
    return [choice for choice in choices if choice != simplest]


def _modes(can: Capabilities) -> tuple[Mode, ...]:
    return tuple(mode for mode in can.modes if mode != "idle") or ("decode",)


def base_fields(can: Capabilities, profile: Profile) -> Fields:
    batch = min(can.max_batch, profile.max_batch)
    return {
        "modes": (_within(_modes(can), "decode"),),
        "capture_bs": (1, 2) if batch > 1 else (1,),
        "capture_tokens": (8,),
        "page_size": 1 if 1 in can.page_sizes else min(can.page_sizes),
        "max_context_len": min(16, can.max_context_len, profile.max_context_len),
        "req_pool_size": batch,
        "head_dim": min(4, can.max_head_dim),
        "v_head_dim": min(4, can.max_head_dim),
        "attention": _within(can.attentions, "mha"),
        "page_map": _within(can.page_maps, "csr"),
        "dtype": _within(can.dtypes, "float32"),
        "kv_dtype": _within(can.kv_dtypes, "auto"),
        "kernels": _within(can.kernels, "torch"),
        "metadata": _within(can.metadata, "full"),
        "seq_len_fill_value": _within(can.seq_len_fill_values, 1),
        "free_padding": _within(can.free_paddings, "keep"),
        "runner": _within(can.runners, "graph"),
        "prefill_runner": _within(can.prefill_runners, "piecewise"),
        "draft_tokens": min(2, can.max_draft_tokens),
    }


def _vary_modes(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    modes = _modes(can)
    count = min(len(modes), chance.pick((1, 1, 1, 1, 2, 2, 2, 3, 3, len(modes))))
    start = chance.below(len(modes))
    spec = [mode for mode in modes if mode in SPEC_MODES]
    if count == 3 and len(spec) == 3 and chance.percent(50):
        fields["modes"] = tuple(spec)
    else:
        fields["modes"] = tuple(modes[(start + i) % len(modes)] for i in range(count))


def _vary_ladder(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    batch = min(can.max_batch, profile.max_batch)
    top = 2 * batch if can.capture_beyond_pool else batch
    most = max(2, 8 // len(fields["modes"]))  # every mode captures every size
    sizes = [each for each in _LADDERS if each[-1] <= top and len(each) <= most]
    fields["capture_bs"] = chance.pick(sizes)


def _vary_token_ladder(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    fields["capture_tokens"] = chance.pick(_TOKEN_LADDERS)


def _vary_pages(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    sizes = _others(can.page_sizes, fields["page_size"])
    common = [size for size in sizes if size <= 32] or sizes
    rare = [size for size in sizes if 32 < size <= 128] or common
    largest = [size for size in sizes if size > 128] or rare
    draw = chance.below(100)
    if sizes:
        fields["page_size"] = chance.pick(common if draw < 78 else rare if draw < 96 else largest)


def _vary_context(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    page = fields["page_size"]
    rare = min(can.max_context_len, profile.rare_context_len)
    usual = min(can.max_context_len, profile.max_context_len)
    if page > 1 and chance.percent(75):  # around whole pages, one page being too few to err in
        length = page * chance.pick((1, 2, 2, 3)) + chance.pick((-1, 0, 0, 1, 1))
        limit = rare if page > usual // 2 else usual
    else:
        length = chance.pick((4, 6, 8, 9, 12, 15, 17, 24, 31, 32, 33))
        limit = usual
    if chance.percent(8):
        length, limit = chance.pick((48, 64, 65, 100, 128, rare)), rare
    fields["max_context_len"] = max(1, min(length, limit))


def _vary_heads(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    heads = [pair for pair in _HEADS if pair[0] <= can.max_q_heads]
    if heads:
        fields["num_q_heads"], fields["num_kv_heads"] = chance.pick(heads)


def _vary_head_dims(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    dims = [pair for pair in _HEAD_DIMS if max(pair) <= can.max_head_dim]
    if dims:
        fields["head_dim"], fields["v_head_dim"] = chance.pick(dims)


def _vary_spec(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    fields["spec_topk"] = min(chance.pick((1, 2, 2, 4, 8)), can.max_spec_topk)
    fields["spec_steps"] = 1 + chance.below(min(5, can.max_spec_steps))
    fields["draft_tokens"] = min(1 + chance.pick((1, 2, 3, 3, 4, 5, 7)), can.max_draft_tokens)


def _vary_window(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    page = fields["page_size"]
    window = chance.pick((1, 2, 3, 4, 7, page - 1, page, page, page + 1, 2 * page))
    if can.sliding_window:
        fields["sliding_window"] = max(1, min(window, fields["max_context_len"]))


def _vary_window_in_tree(
    fields: Fields, can: Capabilities, profile: Profile, chance: Chance
) -> None:
    """A window that ends between a draft and its root, where a tree's mask decides.

    The deepest draft is `draft_tokens - 1` levels below the root, and the window must be shorter.
    """
    if not can.sliding_window or "target_verify" not in can.modes or can.max_draft_tokens < 3:
        return
    fields["modes"] = ("target_verify",)
    fields["spec_topk"] = min(chance.pick((2, 2, 4)), can.max_spec_topk)
    drafts = fields["draft_tokens"] = min(chance.pick((3, 4, 6)), can.max_draft_tokens)
    fields["sliding_window"] = min(chance.pick((1, 1, 2, drafts - 2)), drafts - 2)


def _vary_encoder(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    if can.encoder:
        fields["max_encoder_len"] = chance.pick((1, 3, 4, 9, 16, 40))


def _vary_state(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    if can.recurrent_state and "decode" in can.modes:
        fields["recurrent_state"] = True
        fields["modes"] = ("decode",)


def _vary_runner(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    if "cpu_graph" in can.runners and "decode" in can.modes:
        fields["runner"] = "cpu_graph"
        fields["modes"] = ("decode",)


def _vary_tp(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    sizes = [size for size in (2, 2, 3, 4, 8) if size <= can.max_tp_size]
    if sizes:
        fields["attn_tp_size"] = chance.pick(sizes)
        fields["attn_tp_rank"] = chance.below(fields["attn_tp_size"])


def _vary_split(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    if can.split_kv:
        fields["split_kv"] = chance.pick((1, 2, 3, 4, 5, 8, 16, fields["page_size"]))


def _vary_fallback(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    fields["eager_above_ladder"] = False


def _vary_pool(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    top = fields["capture_bs"][-1]
    beyond = (max(1, top - 1), max(1, top // 2 + 1)) if can.capture_beyond_pool else ()
    sizes = (top, top + 1, *beyond)
    fields["req_pool_size"] = min(chance.pick(sizes), fields["req_pool_size"])


def _one_of(name: str, options: Callable[[Capabilities], Sequence[Any]]) -> Callable[..., None]:
    def vary(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
        others = _others(options(can), fields[name])
        if others:
            fields[name] = chance.pick(others)

    return vary


FEATURES: tuple[tuple[str, int, Callable[[Fields, Capabilities, Profile, Chance], None]], ...] = (
    ("modes", _CORE, _vary_modes),
    ("ladder", _CORE, _vary_ladder),
    ("token ladder", _CORE, _vary_token_ladder),
    ("pages", 65, _vary_pages),
    ("context", _CORE, _vary_context),
    ("spec shape", _CORE, _vary_spec),
    ("heads", 0, _vary_heads),
    ("head dims", 0, _vary_head_dims),
    ("latent", 0, _one_of("attention", lambda can: can.attentions)),
    ("dtype", 0, _one_of("dtype", lambda can: can.dtypes)),
    ("kv dtype", 0, _one_of("kv_dtype", lambda can: can.kv_dtypes)),
    ("kernels", 0, _one_of("kernels", lambda can: can.kernels)),
    ("metadata", 0, _one_of("metadata", lambda can: can.metadata)),
    ("page map", 0, _one_of("page_map", lambda can: can.page_maps)),
    (
        "fill value",
        0,
        _one_of("seq_len_fill_value", lambda can: can.seq_len_fill_values),
    ),
    ("free padding", 0, _one_of("free_padding", lambda can: can.free_paddings)),
    ("prefill runner", 0, _one_of("prefill_runner", lambda can: can.prefill_runners)),
    ("split", 0, _vary_split),
    ("window", 0, _vary_window),
    ("encoder", 0, _vary_encoder),
    ("tp", 0, _vary_tp),
    ("pool", 0, _vary_pool),
    ("no fallback", 6, _vary_fallback),
    ("window in tree", 9, _vary_window_in_tree),
    ("cpu runner", 9, _vary_runner),
    ("state", 12, _vary_state),
)
"""Name, percent of configs that have it (0: by the config's own density), and what it changes.
Below 25 percent configs take turns instead of chances (`configs`).
Later features see the earlier ones' fields."""
