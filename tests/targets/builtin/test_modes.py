"""Every mode of the built-in engine computes what attention defines, replayed and eager."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.case import EngineConfig, Mode, ReplayStep
from tests.targets.builtin.engine import Bench, case_of, rows

MODES: tuple[Mode, ...] = ("decode", "target_verify", "draft_extend", "draft", "prefill")


def config(mode: Mode, **changes: object) -> EngineConfig:
    base: dict[str, object] = {
        "modes": (mode,),
        "capture_bs": (1, 2, 4),
        "capture_tokens": (4, 16) if mode == "prefill" else (),
        "max_context_len": 40,
        "num_q_heads": 2,
        "spec_topk": 2,
        "spec_steps": 2,
        "draft_tokens": 3,
        "kv_pool_pages": 160,
    }
    return EngineConfig(**(base | changes))  # type: ignore[arg-type]


def step(mode: Mode, lens: tuple[int, ...], **more: object) -> ReplayStep:
    new = {"draft_extend": (0, 3, 1, 2), "prefill": (3, 1, 4, 2)}.get(mode, ())
    return ReplayStep(
        mode=mode,
        rows=rows(lens, mode, new[: len(lens)], draft_tokens=3),
        **more,  # type: ignore[arg-type]
    )


def two_steps(mode: Mode) -> tuple[ReplayStep, ReplayStep]:
    """A full batch, then a smaller one that leaves padded rows."""
    return step(mode, (9, 16, 4, 33)), step(mode, (10, 17, 6))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("page_map", ["csr", "page_table"])
def test_replay_and_eager_equal_the_truth(mode: Mode, page_size: int, page_map: str) -> None:
    chosen = config(mode, page_size=page_size, page_map=page_map)
    Bench(chosen).check(case_of(chosen, *two_steps(mode)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kv_dtype", ["auto", "float8_e4m3fn"])
def test_low_precision_stays_within_the_yardstick(mode: Mode, dtype: str, kv_dtype: str) -> None:
    chosen = config(mode, dtype=dtype, kv_dtype=kv_dtype, head_dim=8)
    Bench(chosen).check(case_of(chosen, *two_steps(mode)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kv_dtype", ["auto", "float8_e4m3fn"])
def test_latent_attention_reads_values_from_its_keys(mode: Mode, kv_dtype: str) -> None:
    chosen = config(mode, attention="mla", head_dim=8, v_head_dim=4, kv_dtype=kv_dtype)
    Bench(chosen).check(case_of(chosen, *two_steps(mode)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("metadata", ["raw_out_graph", "raw_in_graph"])
@pytest.mark.parametrize("page_map", ["csr", "page_table"])
def test_raw_metadata_is_upgraded_before_it_is_needed(
    mode: Mode, metadata: str, page_map: str
) -> None:
    chosen = config(mode, metadata=metadata, page_map=page_map, page_size=4, split_kv=8)
    for seen in Bench(chosen).check(case_of(chosen, *two_steps(mode))):
        assert seen.types["forward_metadata"] == seen.types["forward_metadata.needed"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("page_size", [4, 8, 16])
@pytest.mark.parametrize("page_map", ["csr", "page_table"])
def test_window_below_at_and_above_the_page(mode: Mode, page_size: int, page_map: str) -> None:
    chosen = config(mode, sliding_window=8, page_size=page_size, page_map=page_map)
    Bench(chosen).check(case_of(chosen, *two_steps(mode)))


@pytest.mark.parametrize("mode", MODES)
def test_split_plan_gives_the_same_attention(mode: Mode) -> None:
    chosen = config(mode, split_kv=5)
    Bench(chosen).check(case_of(chosen, *two_steps(mode)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", [0, 3])
def test_encoder_lengths_may_differ_and_be_zero(mode: Mode, window: int) -> None:
    chosen = config(mode, max_encoder_len=6, sliding_window=window)
    new = {"draft_extend": (0, 3, 1), "prefill": (3, 1, 4)}.get(mode, ())
    lens, encoders = (9, 16, 6), (6, 0, 2)
    steps = [
        ReplayStep(mode=mode, rows=rows(lens[:n], mode, new[:n], encoders[:n], draft_tokens=3))
        for n in (3, 1)
    ]
    Bench(chosen).check(case_of(chosen, *steps))


@pytest.mark.parametrize("mode", MODES)
def test_capture_sizes_may_exceed_the_request_pool(mode: Mode) -> None:
    chosen = config(mode, req_pool_size=4, capture_bs=(16,))
    seen = Bench(chosen).check(case_of(chosen, *two_steps(mode)))
    if mode != "prefill":
        assert seen[0].padded_bs == 16


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fill", [0, 1])
def test_idle_step_replays_padded_rows_alone(mode: Mode, fill: int) -> None:
    chosen = config(mode, seq_len_fill_value=fill, attn_tp_size=2, attn_tp_rank=1)
    _, idle = Bench(chosen).check(case_of(chosen, step(mode, (9, 12)), ReplayStep(mode="idle")))
    assert idle.raw_bs == 0
    assert idle.padded_tokens > 0
    for output in idle.outputs.values():
        assert bool(torch.isfinite(output.double()).all())
    if mode == "decode" and fill == 0:
        assert not idle.outputs["attention"].any()


@pytest.mark.parametrize("mode", MODES)
def test_batch_above_the_ladder_runs_eagerly(mode: Mode) -> None:
    chosen = config(mode, capture_bs=(1, 2), capture_tokens=(2,) if mode == "prefill" else ())
    (seen,) = Bench(chosen).check(case_of(chosen, step(mode, (9, 16, 4, 33))))
    assert seen.padded_tokens == seen.num_tokens


@pytest.mark.parametrize("mode", MODES)
def test_eager_step_between_replays_changes_nothing(mode: Mode) -> None:
    chosen = config(mode)
    steps = step(mode, (9, 16)), step(mode, (10, 17, 4, 33), via="eager"), step(mode, (11, 18))
    Bench(chosen).check(case_of(chosen, *steps))


@pytest.mark.parametrize("mode", ["decode", "target_verify", "draft_extend", "prefill"])
def test_optional_positions_present_then_absent(mode: Mode) -> None:
    chosen = config(mode)
    steps = step(mode, (9, 16), mrope=True), step(mode, (10, 17)), step(mode, (11, 18), mrope=True)
    Bench(chosen).check(case_of(chosen, *steps))


@pytest.mark.parametrize("mode", ["decode", "target_verify", "draft_extend", "prefill"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_rank_gets_its_share_of_the_tokens(mode: Mode, rank: int) -> None:
    chosen = config(mode, attn_tp_size=3, attn_tp_rank=rank)
    Bench(chosen).check(case_of(chosen, *two_steps(mode)))


def test_breakable_prefill_equals_the_truth() -> None:
    chosen = config("prefill", prefill_runner="breakable", max_encoder_len=3)
    Bench(chosen).check(case_of(chosen, *two_steps("prefill")))


def test_cpu_graph_runner_keeps_a_batch_per_size() -> None:
    chosen = config("decode", runner="cpu_graph")
    bench = Bench(chosen)
    bench.check(case_of(chosen, *two_steps("decode"), step("decode", (12,))))
    runner = bench.session.runners["decode"]
    addresses = {runner.batches[size].registry.buffers["seq_lens"].data_ptr() for size in (1, 2, 4)}
    assert len(addresses) == 3


def test_recurrent_state_advances_by_each_token() -> None:
    chosen = config("decode", recurrent_state=True)
    Bench(chosen).check(case_of(chosen, *two_steps("decode")))


def test_verify_follows_a_chain_where_there_is_one_branch() -> None:
    chosen = config("target_verify", spec_topk=1)
    Bench(chosen).check(case_of(chosen, *two_steps("target_verify")))


def test_draft_results_survive_the_next_draft() -> None:
    chosen = config("draft")
    bench = Bench(chosen)
    assert bench.session.keeps_outputs("draft")
    kept = None
    for _, seen in bench.run(case_of(chosen, *two_steps("draft"))):
        if kept is None:
            first, kept = dict(bench.session.results()), seen.outputs
    assert kept is not None
    for name, value in kept.items():
        assert torch.equal(first[name], value), name


def test_modes_of_one_session_share_inputs_and_stay_right() -> None:
    modes: tuple[Mode, ...] = ("decode", "target_verify", "draft_extend", "draft", "prefill")
    chosen = config("decode", modes=modes, capture_tokens=(8,))
    steps = [step(mode, lens) for lens in ((9, 12), (12, 15)) for mode in modes]
    bench = Bench(chosen)
    bench.check(case_of(chosen, *steps))
    first, second = (bench.session.runners[mode] for mode in ("decode", "target_verify"))
    shared = [
        runner.batches[4].registry.buffers["seq_lens"].data_ptr() for runner in (first, second)
    ]
    assert shared[0] == shared[1]


@pytest.mark.parametrize("mode", MODES)
def test_triton_kernels_agree_with_the_truth(mode: Mode) -> None:
    pytest.importorskip("triton")
    chosen = config(mode, kernels="triton", capture_bs=(2,), max_context_len=12)
    Bench(chosen).check(case_of(chosen, step(mode, (9, 6))))
