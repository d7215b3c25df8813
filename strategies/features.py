"""The features of a swarm: what each changes in a config, within a target's reach.

How features are combined, and made to agree, is `configs`' job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fuzzgraph.case import Mode
from fuzzgraph.reach import Reach
from fuzzgraph.strategies.chance import Chance
from fuzzgraph.strategies.profile import Profile

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


def _modes(reach: Reach) -> tuple[Mode, ...]:
    return tuple(mode for mode in reach.modes if mode != "idle") or ("decode",)


def base_fields(reach: Reach, profile: Profile) -> Fields:
    batch = min(reach.max_batch, profile.max_batch)
    return {
        "modes": (_within(_modes(reach), "decode"),),
        "capture_bs": (1, 2) if batch > 1 else (1,),
        "capture_tokens": (8,),
        "page_size": 1 if 1 in reach.page_sizes else min(reach.page_sizes),
        "max_context_len": min(16, reach.max_context_len, profile.max_context_len),
        "req_pool_size": batch,
        "head_dim": min(4, reach.max_head_dim),
        "v_head_dim": min(4, reach.max_head_dim),
        "attention": _within(reach.attentions, "mha"),
        "page_map": _within(reach.page_maps, "csr"),
        "dtype": _within(reach.dtypes, "float32"),
        "kv_dtype": _within(reach.kv_dtypes, "auto"),
        "kernels": _within(reach.kernels, "torch"),
        "metadata": _within(reach.metadata, "full"),
        "seq_len_fill_value": _within(reach.seq_len_fill_values, 1),
        "free_padding": _within(reach.free_paddings, "keep"),
        "runner": _within(reach.runners, "graph"),
        "prefill_runner": _within(reach.prefill_runners, "piecewise"),
        "draft_tokens": min(2, reach.max_draft_tokens),
    }


def _vary_modes(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    modes = _modes(reach)
    count = min(len(modes), chance.pick((1, 1, 1, 1, 2, 2, 2, 3, 3, len(modes))))
    start = chance.below(len(modes))
    spec = [mode for mode in modes if mode in SPEC_MODES]
    if count == 3 and len(spec) == 3 and chance.percent(50):
        fields["modes"] = tuple(spec)
    else:
        fields["modes"] = tuple(modes[(start + i) % len(modes)] for i in range(count))


def _vary_ladder(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    batch = min(reach.max_batch, profile.max_batch)
    top = 2 * batch if reach.capture_beyond_pool else batch
    most = max(2, 8 // len(fields["modes"]))  # every mode captures every size
    sizes = [each for each in _LADDERS if each[-1] <= top and len(each) <= most]
    fields["capture_bs"] = chance.pick(sizes)


def _vary_token_ladder(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    fields["capture_tokens"] = chance.pick(_TOKEN_LADDERS)


def _vary_pages(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    sizes = _others(reach.page_sizes, fields["page_size"])
    common = [size for size in sizes if size <= 32] or sizes
    rare = [size for size in sizes if 32 < size <= 128] or common
    largest = [size for size in sizes if size > 128] or rare
    draw = chance.below(100)
    if sizes:
        fields["page_size"] = chance.pick(common if draw < 78 else rare if draw < 96 else largest)


def _vary_context(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    page = fields["page_size"]
    rare = min(reach.max_context_len, profile.rare_context_len)
    usual = min(reach.max_context_len, profile.max_context_len)
    if page > 1 and chance.percent(75):  # around whole pages, one page being too few to err in
        length = page * chance.pick((1, 2, 2, 3)) + chance.pick((-1, 0, 0, 1, 1))
        limit = rare if page > usual // 2 else usual
    else:
        length = chance.pick((4, 6, 8, 9, 12, 15, 17, 24, 31, 32, 33))
        limit = usual
    if chance.percent(8):
        length, limit = chance.pick((48, 64, 65, 100, 128, rare)), rare
    fields["max_context_len"] = max(1, min(length, limit))


def _vary_heads(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    heads = [pair for pair in _HEADS if pair[0] <= reach.max_q_heads]
    if heads:
        fields["num_q_heads"], fields["num_kv_heads"] = chance.pick(heads)


def _vary_head_dims(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    dims = [pair for pair in _HEAD_DIMS if max(pair) <= reach.max_head_dim]
    if dims:
        fields["head_dim"], fields["v_head_dim"] = chance.pick(dims)


def _vary_spec(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    fields["spec_topk"] = min(chance.pick((1, 2, 2, 4, 8)), reach.max_spec_topk)
    fields["spec_steps"] = 1 + chance.below(min(5, reach.max_spec_steps))
    fields["draft_tokens"] = min(1 + chance.pick((1, 2, 3, 3, 4, 5, 7)), reach.max_draft_tokens)


def _vary_window(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    page = fields["page_size"]
    window = chance.pick((1, 2, 3, 4, 7, page - 1, page, page, page + 1, 2 * page))
    if reach.sliding_window:
        fields["sliding_window"] = max(1, min(window, fields["max_context_len"]))


def _vary_window_in_tree(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    """A window that ends between a draft and its root, where a tree's mask decides.

    The deepest draft is `draft_tokens - 1` levels below the root, and the window must be shorter.
    """
    if not reach.sliding_window or "target_verify" not in reach.modes or reach.max_draft_tokens < 3:
        return
    fields["modes"] = ("target_verify",)
    fields["spec_topk"] = min(chance.pick((2, 2, 4)), reach.max_spec_topk)
    drafts = fields["draft_tokens"] = min(chance.pick((3, 4, 6)), reach.max_draft_tokens)
    fields["sliding_window"] = min(chance.pick((1, 1, 2, drafts - 2)), drafts - 2)


def _vary_encoder(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    if reach.encoder:
        fields["max_encoder_len"] = chance.pick((1, 3, 4, 9, 16, 40))


def _vary_state(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    if reach.recurrent_state and "decode" in reach.modes:
        fields["recurrent_state"] = True
        fields["modes"] = ("decode",)


def _vary_runner(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    if "cpu_graph" in reach.runners and "decode" in reach.modes:
        fields["runner"] = "cpu_graph"
        fields["modes"] = ("decode",)


def _vary_tp(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    sizes = [size for size in (2, 2, 3, 4, 8) if size <= reach.max_tp_size]
    if sizes:
        fields["attn_tp_size"] = chance.pick(sizes)
        fields["attn_tp_rank"] = chance.below(fields["attn_tp_size"])


def _vary_split(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    if reach.split_kv:
        fields["split_kv"] = chance.pick((1, 2, 3, 4, 5, 8, 16, fields["page_size"]))


def _vary_fallback(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    fields["eager_above_ladder"] = False


def _vary_pool(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
    top = fields["capture_bs"][-1]
    beyond = (max(1, top - 1), max(1, top // 2 + 1)) if reach.capture_beyond_pool else ()
    sizes = (top, top + 1, *beyond)
    fields["req_pool_size"] = min(chance.pick(sizes), fields["req_pool_size"])


def _one_of(name: str, options: Callable[[Reach], Sequence[Any]]) -> Callable[..., None]:
    def vary(fields: Fields, reach: Reach, profile: Profile, chance: Chance) -> None:
        others = _others(options(reach), fields[name])
        if others:
            fields[name] = chance.pick(others)

    return vary


FEATURES: tuple[tuple[str, int, Callable[[Fields, Reach, Profile, Chance], None]], ...] = (
    ("modes", _CORE, _vary_modes),
    ("ladder", _CORE, _vary_ladder),
    ("token ladder", _CORE, _vary_token_ladder),
    ("pages", 65, _vary_pages),
    ("context", _CORE, _vary_context),
    ("spec shape", _CORE, _vary_spec),
    ("heads", 0, _vary_heads),
    ("head dims", 0, _vary_head_dims),
    ("latent", 0, _one_of("attention", lambda reach: reach.attentions)),
    ("dtype", 0, _one_of("dtype", lambda reach: reach.dtypes)),
    ("kv dtype", 0, _one_of("kv_dtype", lambda reach: reach.kv_dtypes)),
    ("kernels", 0, _one_of("kernels", lambda reach: reach.kernels)),
    ("metadata", 0, _one_of("metadata", lambda reach: reach.metadata)),
    ("page map", 0, _one_of("page_map", lambda reach: reach.page_maps)),
    ("fill value", 0, _one_of("seq_len_fill_value", lambda reach: reach.seq_len_fill_values)),
    ("free padding", 0, _one_of("free_padding", lambda reach: reach.free_paddings)),
    ("prefill runner", 0, _one_of("prefill_runner", lambda reach: reach.prefill_runners)),
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
