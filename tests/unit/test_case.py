"""A case is small strict JSON: validated, canonical, named by its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.case import (
    BatchRow,
    Case,
    EngineConfig,
    ReplayStep,
    case_schema,
    decode_case,
    digest,
    encode_case,
    load_case,
    save_case,
    validate,
)
from fuzzgraph.errors import InvalidCase, UsageError


def decode_case_of(raw_bs: int = 2, **config: Any) -> Case:
    rows = tuple(BatchRow(request=request, seq_len=3) for request in range(raw_bs))
    return Case(schema_version=1, config=EngineConfig(**config), steps=(ReplayStep(rows=rows),))


def text_of(**changes: Any) -> str:
    found = json.loads(encode_case(decode_case_of()))
    return json.dumps({**found, **changes})


def test_a_case_comes_back_from_its_json() -> None:
    case = decode_case_of(page_size=4, capture_bs=(1, 4))

    assert decode_case(encode_case(case)) == case


def test_equal_cases_have_equal_bytes_and_one_name() -> None:
    assert encode_case(decode_case_of()) == encode_case(decode_case_of())
    assert digest(decode_case_of()) == digest(decode_case_of())
    assert digest(decode_case_of()) != digest(decode_case_of(page_size=2))


def test_the_name_of_a_case_never_changes() -> None:
    # Corpus files and ledgers refer to cases by this name.
    assert digest(decode_case_of()) == "6f9f669393b8"


def test_key_order_in_a_file_does_not_change_the_name() -> None:
    found = json.loads(encode_case(decode_case_of()))
    turned = json.dumps(dict(reversed(list(found.items()))))

    assert digest(decode_case(turned)) == digest(decode_case_of())


def test_defaults_are_left_out_of_the_json() -> None:
    assert "page_size" not in json.loads(encode_case(decode_case_of()))["config"]


def test_the_published_schema_accepts_a_case_and_refuses_a_wrong_one() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = case_schema()

    jsonschema.validate(json.loads(encode_case(decode_case_of())), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(text_of(seed="one")), schema)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "mine: not valid JSON"),
        ("[]", "mine: not a case: it has no schema_version. Take the case.json that a run"),
        (text_of(schema_version=2), "mine: schema_version=2 is not supported"),
        (text_of(colour=1), "unknown field `colour`"),
        (text_of(seed="x"), "Expected `int`, got `str` - at `$.seed`"),
        (text_of(steps=[]), "mine: steps=() is empty"),
        (text_of(seed=-1), "mine: seed=-1 must lie in 0..2**63-1"),
        (text_of(page_order="random"), "Invalid enum value 'random'"),
    ],
    ids=[
        "not JSON",
        "not an object",
        "another version",
        "unknown field",
        "wrong type",
        "no steps",
        "negative seed",
        "unknown order",
    ],
)
def test_a_malformed_file_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InvalidCase) as caught:
        decode_case(text, where="mine")

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidCase, match=r"absent\.json: cannot be read"):
        load_case(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe{}",
        b'{"schema_version":1,"config":{"dtype":"\xff"},"steps":[]}',
        b'{"schema_version":1,"steps":' + b"[" * 100_000,
    ],
    ids=["no text", "no text inside a string", "nested beyond all bounds"],
)
def test_a_file_with_broken_text_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(content)

    with pytest.raises(InvalidCase, match=r"case\.json: not valid JSON"):
        load_case(path)


def test_a_saved_case_is_read_again(tmp_path: Path) -> None:
    save_case(decode_case_of(page_size=4), tmp_path / "case.json")

    assert load_case(tmp_path / "case.json") == decode_case_of(page_size=4)
    with pytest.raises(UsageError, match=r"case\.json: cannot be written"):
        save_case(decode_case_of(), tmp_path / "absent" / "case.json")


def test_a_case_file_is_read_and_validated(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(decode_case_of()))

    assert load_case(path) == decode_case_of()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"page_size": 0}, "config.page_size=0 must lie in 1..1024"),
        ({"head_dim": 1 << 20}, "config.head_dim=1048576 must lie in 1..1024"),
        ({"sliding_window": -1}, "config.sliding_window=-1 must lie in 0..131072"),
        ({"split_kv": 1 << 62}, "must lie in 0..131072. Use 0 to switch it off"),
        ({"max_encoder_len": 1 << 40}, "must lie in 0..131072"),
        (
            {"page_size": 1024, "kv_pool_pages": 1 << 20, "head_dim": 1024, "v_head_dim": 1024},
            "config.kv_pool_pages=1048576 makes a KV pool of 2199023255552 elements",
        ),
        ({"capture_bs": (4, 2)}, "config.capture_bs=(4, 2) must be ascending"),
        ({"capture_bs": (2, 2)}, "config.capture_bs=(2, 2) must be ascending"),
        ({"capture_bs": ()}, "config.capture_bs=() is empty"),
        ({"capture_bs": (9000,)}, "config.capture_bs=9000 exceeds 8192"),
        ({"modes": ()}, "config.modes=() must name each captured mode once"),
        ({"modes": ("decode", "decode")}, "must name each captured mode once"),
        ({"modes": ("decode", "prefill")}, "config.capture_tokens=() is empty"),
        ({"num_q_heads": 3, "num_kv_heads": 2}, "config.num_q_heads=3 is not a multiple"),
        ({"attention": "mla", "v_head_dim": 8}, "config.attention='mla' needs num_kv_heads=1"),
        ({"attn_tp_rank": 1}, "config.attn_tp_rank=1 must be below attn_tp_size=1"),
        (
            {"recurrent_state": True, "modes": ("decode", "draft")},
            "config.recurrent_state=True needs modes=['decode']",
        ),
        (
            {"runner": "cpu_graph", "modes": ("draft",)},
            "config.runner='cpu_graph' captures decode only",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_contradictory_config_is_refused_with_its_value(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidCase) as caught:
        validate(decode_case_of(**config))

    assert message in str(caught.value)


def row(request: int = 0, **fields: Any) -> BatchRow:
    return BatchRow(request=request, **fields)


@pytest.mark.parametrize(
    ("steps", "config", "message"),
    [
        (
            (ReplayStep(rows=(row(seq_len=17),)),),
            {},
            "steps[0].rows[0].seq_len=17 must lie in 1..max_context_len=16",
        ),
        ((ReplayStep(rows=(row(seq_len=0),)),), {}, "steps[0].rows[0].seq_len=0 must lie in 1.."),
        (
            (ReplayStep(rows=(row(new_tokens=2, seq_len=4),)),),
            {},
            "steps[0].rows[0].new_tokens=2 must lie in 1..1 in mode 'decode'",
        ),
        (
            (ReplayStep(mode="target_verify", rows=(row(new_tokens=2, seq_len=1),)),),
            {"modes": ("target_verify",)},
            "steps[0].rows[0].seq_len=1 must lie in 2..",
        ),
        ((ReplayStep(rows=(row(-1),)),), {}, "steps[0].rows[0].request=-1 must lie in"),
        ((ReplayStep(rows=(row(1), row(1))),), {}, "steps[0].rows=[1, 1] name a request twice"),
        (
            (ReplayStep(rows=(row(),)), ReplayStep(finish=(3,))),
            {},
            "steps[1].finish=3 names a request that is not live",
        ),
        (
            (ReplayStep(mode="idle", rows=(row(),)),),
            {},
            "steps[0].rows=1 must be empty in mode 'idle'",
        ),
        (
            (ReplayStep(mode="draft"),),
            {},
            "steps[0].mode='draft' is not captured; config.modes=['decode']",
        ),
        (
            (ReplayStep(rows=(row(encoder_len=2),)),),
            {},
            "steps[0].rows[0].encoder_len=2 must lie in 0..max_encoder_len=0",
        ),
        (
            (ReplayStep(rows=(row(encoder_len=2),)), ReplayStep(rows=(row(encoder_len=1),))),
            {"max_encoder_len": 4},
            "steps[1].rows[0].encoder_len=1 contradicts 2 given earlier",
        ),
        (
            (ReplayStep(rows=(row(0), row(1))), ReplayStep(rows=(row(2),))),
            {"req_pool_size": 2},
            "steps[1]: live requests=3 exceed req_pool_size=2",
        ),
        (
            (ReplayStep(rows=(row(0), row(1), row(2))),),
            {"eager_above_ladder": False},
            "steps[0]: size=3 exceeds max(capture_bs)=2 and eager_above_ladder is false",
        ),
    ],
)
def test_a_contradictory_history_is_refused_with_its_place(
    steps: tuple[ReplayStep, ...], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidCase) as caught:
        validate(Case(schema_version=1, config=EngineConfig(**config), steps=steps))

    assert message in str(caught.value)


def test_shared_pages_beyond_the_pool_are_refused() -> None:
    case = decode_case_of(kv_pool_pages=4)

    with pytest.raises(InvalidCase, match=r"shared_prefix_pages=5 must lie in 0\.\.kv_pool"):
        decode_case(json.dumps({**json.loads(encode_case(case)), "shared_prefix_pages": 5}))


def test_a_finished_request_may_come_back() -> None:
    steps = (ReplayStep(rows=(row(),)), ReplayStep(rows=(row(seq_len=2),), finish=(0,)))
    case = Case(schema_version=1, config=EngineConfig(), steps=steps)

    assert validate(case) is case


class Empty(tuple[Any, ...]):
    """An empty tuple that is not the object `()`, as Python 3.10 makes them."""


def test_an_empty_tuple_is_omitted_whichever_object_it_is() -> None:
    plain, other = (
        Case(
            schema_version=1,
            config=EngineConfig(capture_tokens=empty),
            steps=(ReplayStep(mode="idle", rows=empty, finish=empty),),
        )
        for empty in ((), Empty())
    )
    assert encode_case(other) == encode_case(plain)
    assert digest(other) == digest(plain) == digest(decode_case(encode_case(other)))
