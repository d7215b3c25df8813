"""A model with experts: the engine's own block of Qwen3-MoE, DeepSeek V3 or GPT-OSS, behind
attention.

Gate, `TopK`, dispatcher and fused experts are the engine's, with the weights of
`fuzzgraph.experts`; whether padded tokens are masked is the block's own decision. As in the
engine's model the block runs within its layer of the recorder that counts tokens of experts. Beside
data-parallel ranks the engine gathers the tokens of all of them before the block, and gives back
what the experts of all of them give for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.experts.columns import ATTENDED, EXPERT_WIDTH
from fuzzgraph.experts.placement import expert_at, local_experts, shared_columns
from fuzzgraph.experts.routing import SIGMOID_SCALE, correction_bias, router_bias, router_weight
from fuzzgraph.experts.weights import (
    SHARED,
    SWIGLU_ALPHA,
    SWIGLU_LIMIT,
    UNQUANTISED,
    down_bias,
    down_weight,
    gate_up_bias,
    gate_up_weight,
    has_biases,
    intermediate,
    token_rows,
)
from fuzzgraph.targets.offline.demands import demand_lookup, demand_size
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.attention_model import (
    FORWARD,
    AttentionModel,
    Rope,
    Written,
    as_loaded,
)
from fuzzgraph.targets.sglang.experts_beside_ranks import Around, open_around
from fuzzgraph.targets.sglang.quantised_experts_model import fill, load_quantised
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.expert_ranks import ExpertRanks
from fuzzgraph.targets.sglang.stubs.fused_experts import RECORDER
from fuzzgraph.targets.sglang.stubs.quantised_experts import quantisation
from fuzzgraph.targets.sglang.stubs.shared_experts import decided_by_loader
from fuzzgraph.targets.sglang.stubs.tp_groups import rows_of_ranks
from fuzzgraph.world import Batch

Family = Literal["qwen3", "deepseek", "gpt-oss"]
BLOCKS: Mapping[Family, tuple[str, str]] = {
    "qwen3": ("sglang.srt.models.qwen3_moe", "Qwen3MoeSparseMoeBlock"),
    "deepseek": ("sglang.srt.models.deepseek_v2", "DeepseekV2MoE"),
    "gpt-oss": ("sglang.srt.models.gpt_oss", "GptOssSparseMoeBlock"),
}
"""Models with experts: where the block lies, and its name."""
_FUSES = "DeepseekV3ForCausalLM"
"""The model that decides whether its shared expert is fused, beside its block."""
_COMPUTED = "what the experts computed"
_GIVEN_BACK = "what the experts of all ranks computed"
_LAYER = 0


class ExpertsModel(AttentionModel):
    """Tokens at positions; attention, then what the experts give, then which experts those are."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        super().__init__(config, device, rope)
        self._device = device
        self._dtype = getattr(torch, config.dtype)
        rows = token_rows(config.expert_quantisation).to(self._dtype)
        self.rows = torch.empty_like(rows, device=device).copy_(rows)
        self.block: Any = None
        self._chosen: list[torch.Tensor] = []
        self._ranks: ExpertRanks | None = None

    def open_block(self, ranks: Any) -> Any:
        """The engine's block with the known weights; from here on the model has experts.

        Args:
            ranks: the group of all ranks.
        """
        if isinstance(ranks, ExpertRanks):
            self._open_ranks(ranks)
        with as_loaded(self._device, self._dtype):
            place, name = BLOCKS[family_of(self._config)]
            described = described_experts(self._config)
            kind = getattr(engine_module(place), name)
            # As its decoder layer says where what is around it adds up (deepseek_v2.py, 0.5.23).
            summed = {} if self._ranks is None else {"reduce_results": False}
            quantised = quantisation(self._config.expert_quantisation)
            model = getattr(engine_module(place), _FUSES, None)
            with decided_by_loader(model, described) as self.shared_experts_config:
                block = call_with_known(
                    kind, layer_id=_LAYER, config=described, quant_config=quantised, **summed
                )
        self._fill_block(block)
        self._take_down(block)
        self.block = block
        return block

    def _open_ranks(self, ranks: ExpertRanks) -> None:
        most = ranks.open(self._device, self.rows)
        self._ranks = ranks
        self._around: Around = open_around()
        rows = self._config.dp_size * most
        self._given = torch.empty(rows, EXPERT_WIDTH, dtype=self._dtype, device=self._device)

    def past(self, batch: Batch) -> Iterable[Written]:
        yield from super().past(batch)
        if self._ranks is not None:
            yield from self._ranks.past(batch)

    def given_of_ranks(self, sizes: list[int]) -> torch.Tensor:
        """[tokens of all ranks, columns] what this rank's experts gave in the last run.

        Args:
            sizes: tokens of each rank.
        """
        assert self._ranks is not None
        return rows_of_ranks(self._given, self._ranks.starts, sizes)

    def _fill_block(self, block: Any) -> None:
        experts, biased = self._config.num_experts, has_biases(self._config)
        lies, held = expert_at(self._config), block.experts
        mine = [lies[place] for place in local_experts(self._config)]
        router, kind = block.router if biased else block.gate, self._config.expert_quantisation
        scoring = self._config.expert_scoring
        weight = router_weight(experts, kind, biased=biased, scoring=scoring)
        fill(router.weight, weight)
        if kind != UNQUANTISED:
            load_quantised(held, kind, mine)
            return
        if self._config.shared_experts == "fused":
            mine.append(SHARED)
        gates_and_ups = [*map(gate_up_weight, mine)]
        fill(held.w2_weight, torch.stack([*map(down_weight, mine)]))
        if biased:
            gates_and_ups = [*map(_interleaved, gates_and_ups)]
            biases = [_interleaved(gate_up_bias(expert)) for expert in mine]
            fill(router.bias, router_bias(experts))
            fill(held.w13_weight_bias, torch.stack(biases))
            fill(held.w2_weight_bias, torch.stack([*map(down_bias, mine)]))
        fill(held.w13_weight, torch.stack(gates_and_ups))
        if scoring == "sigmoid":
            bias = correction_bias(experts)
            fill(block.gate.e_score_correction_bias, bias)
            if self._config.shared_experts != "fused":
                self._fill_shared(block.shared_experts)

    def _fill_shared(self, shared: Any) -> None:
        """The shared expert that lies apart from the others; in a layer without one it gives
        zeros, for the engine's block has it anyway."""
        if self._config.shared_experts == "none":
            for each in shared.parameters():
                each.data.zero_()
            return
        mine = shared_columns(self._config)
        both = gate_up_weight(SHARED).chunk(2)
        fill(shared.gate_up_proj.weight, torch.cat([each[mine] for each in both]))
        fill(shared.down_proj.weight, down_weight(SHARED)[:, mine])

    def _take_down(self, block: Any) -> None:
        """Keep what the router chooses, what the experts are handed of it, and beside other ranks
        what they give."""
        chosen, compute = self._chosen, block.experts.run_moe_core

        def keep(module: Any, given: Any, found: Any) -> None:
            chosen[:] = [found.topk_ids]

        def keep_and_compute(dispatch_output: Any, *args: Any, **more: Any) -> Any:
            chosen.append(self._handed_ids(dispatch_output))
            return compute(dispatch_output, *args, **more)

        def show(module: Any, rows: Any, given: torch.Tensor) -> None:
            self._given[: len(given)] = given  # some blocks sum it up over ranks by themselves

        block.topk.register_forward_hook(keep)
        if self._ranks is not None:
            block.experts.register_forward_hook(show)
        block.experts.run_moe_core = keep_and_compute

    def _handed_ids(self, dispatched: Any) -> torch.Tensor:
        """[tokens, experts_per_token] of what the experts were handed."""
        found: torch.Tensor = dispatched.topk_output.topk_ids
        return found

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Attention's columns, then those of the experts; then the ids that the router chose for
        each token, and those that the experts were handed."""
        attended = self._attended(input_ids, positions, forward_batch)
        own = demand_lookup(self.rows, input_ids, "input_ids", FORWARD)
        seen = attended[:, :ATTENDED]
        seen = torch.nn.functional.pad(seen, (0, ATTENDED - seen.shape[1]))
        rows = torch.cat((own, seen), dim=1)
        recorder = engine_module(RECORDER).get_global_expert_distribution_recorder()
        with recorder.with_current_layer(_LAYER):
            out = self._through_experts(rows, forward_batch)
        ids = [self._own(each, len(rows)).to(out.dtype) for each in self._chosen]
        self._chosen.clear()
        return torch.cat((attended, out, *ids), dim=1)

    def _own(self, gathered: torch.Tensor, rows: int) -> torch.Tensor:
        """Of rows for the tokens of all ranks those of this one."""
        if self._ranks is None:
            return gathered
        first = self._ranks.starts[self._ranks.rank]
        return gathered[first + torch.arange(rows, device=gathered.device)]

    def _attended(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Models leave attention out of a rank without tokens (sglang qwen3_moe.py,
        Qwen3MoeDecoderLayer.forward)."""
        if len(input_ids):
            return super().attend(input_ids, positions, forward_batch)
        return self.rows.new_empty(0, self._attended_columns)

    def _through_experts(self, rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        if self._ranks is None:
            out: torch.Tensor = self.block(rows, forward_batch)
            return demand_size(out, len(rows), EXPERT_WIDTH, _COMPUTED, FORWARD)
        self._ranks.exchanged = "rows"
        gathered = self._around.gather(rows, forward_batch)
        self._ranks.exchanged = "parts"
        given = self._around.compute(self.block, gathered, forward_batch)
        demand_size(given, len(gathered), EXPERT_WIDTH, _COMPUTED, FORWARD)
        out = self._around.give_back(given, forward_batch)
        return demand_size(out, len(rows), EXPERT_WIDTH, _GIVEN_BACK, FORWARD)


def family_of(config: EngineConfig) -> Family:
    """The model whose experts a config has."""
    if has_biases(config):
        return "gpt-oss"
    return "deepseek" if config.expert_scoring == "sigmoid" else "qwen3"


def described_experts(config: EngineConfig) -> Any:
    """The engine's description of the block."""
    from transformers import DeepseekV3Config, GptOssConfig, Qwen3MoeConfig

    if family_of(config) == "gpt-oss":
        return GptOssConfig(
            hidden_size=EXPERT_WIDTH,
            intermediate_size=intermediate(config),
            num_local_experts=config.num_experts,
            num_experts_per_tok=config.experts_per_token,
            swiglu_limit=SWIGLU_LIMIT,
            hidden_act_alpha=SWIGLU_ALPHA,
            dtype=getattr(torch, config.dtype),
            num_hidden_layers=1,
        )
    if family_of(config) == "deepseek":
        described = DeepseekV3Config(
            architectures=[_FUSES],
            hidden_size=EXPERT_WIDTH,
            moe_intermediate_size=intermediate(config),
            n_routed_experts=config.num_experts,
            num_experts_per_tok=config.experts_per_token,
            norm_topk_prob=True,
            n_group=config.expert_groups,
            topk_group=max(1, config.expert_groups // 2),
            n_shared_experts=1,
            routed_scaling_factor=SIGMOID_SCALE,
            num_hidden_layers=1,
        )
        described.topk_method, described.scoring_func = "noaux_tc", "sigmoid"
        return described
    return Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"],
        hidden_size=EXPERT_WIDTH,
        moe_intermediate_size=intermediate(config),
        num_experts=config.num_experts,
        num_experts_per_tok=config.experts_per_token,
        norm_topk_prob=True,
        num_hidden_layers=1,
        vocab_size=32,
    )


def _interleaved(rows: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up one by one, as GPT-OSS has them."""
    return torch.stack(rows.chunk(2), dim=1).flatten(0, 1)
