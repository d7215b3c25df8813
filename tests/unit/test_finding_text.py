"""A finding is said once: a short heading, its sentence, and what the sentence leaves out."""

from __future__ import annotations

import msgspec
import pytest

from fuzzgraph.finding import CLAUSES, Clause, Finding
from fuzzgraph.reporting.plain_text import finding_head
from fuzzgraph.text.finding_text import IN_ITS_STEP, effect_text, observed, sentence, title
from tests.fakes import finding


def breach(effect: str = "") -> Finding:
    """A broken contract, with what its step does to live rows."""
    found = finding("contract", "metadata", "page_table", mode="target_verify")
    return msgspec.structs.replace(
        found,
        symptom="broken_contract",
        message="step 0 (raw_bs=1): page_table has 8 pages for row 0"
        + (f"{IN_ITS_STEP}{effect}" if effect else ""),
        detail={"effect": "high"} if effect else {},
    )


def test_a_heading_says_what_where_and_no_value() -> None:
    assert title(breach("attention[0]: got 2, expected 1")) == (
        "Wrong metadata: page_table in a target verify replay"
    )
    assert title(finding(step=-1)) == "Write out of bounds: kv_indices at warm-up or capture"


@pytest.mark.parametrize("clause", CLAUSES)
def test_every_clause_has_a_heading(clause: Clause) -> None:
    found = msgspec.structs.replace(finding(clause=clause), symptom="mismatch")
    assert title(found).endswith(": kv_indices in a decode replay")


def test_the_effect_is_a_line_of_its_own_and_no_part_of_the_sentence() -> None:
    found = breach("attention[0]: got 2, expected 1")
    assert sentence(found) == sentence(breach())
    assert observed(found) == "page_table has 8 pages for row 0"
    assert (
        effect_text(found) == "the same step also harms live rows: attention[0]: got 2, expected 1"
    )
    assert effect_text(breach()) == ""


def test_a_sentence_names_a_few_of_many_places() -> None:
    places = ", ".join(f"red zone of buffer {number}" for number in range(40))
    found = msgspec.structs.replace(
        finding("noninterference", "reads"), symptom="mismatch", detail={"blamed": places}
    )
    assert sentence(found).endswith(
        "it reads red zone of buffer 0, red zone of buffer 1, red zone of buffer 2 and 37 more"
    )


def test_what_the_sentence_says_is_not_said_again() -> None:
    text = "\n".join(finding_head(breach("attention[0]: got 2, expected 1")))
    assert text.count("page_table has 8 pages") == 1
    assert text.count("attention[0]: got 2") == 1
    other = "\n".join(finding_head(finding()))
    assert "observed 16 elements changed" in other


def test_a_message_without_an_effect_is_not_cut() -> None:
    odd = msgspec.structs.replace(breach("x"), detail={})
    assert observed(odd).endswith(f"{IN_ITS_STEP}x") and effect_text(odd) == ""
