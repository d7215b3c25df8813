"""The catalogue of known bugs is read strictly, and every entry of the project's own is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.known_bugs import Expectation, chosen, load
from fuzzgraph.targets import target_names
from tests.fakes import finding

REPOSITORY = Path(__file__).resolve().parents[3]

GOOD = """
source = "engine PR 1"
summary = "A buffer is too small."
target = "builtin"
broken = ["1.0"]
fixed = ["1.1"]
confirmed = "by reading"
expect = [{clause = "writes", buffer = "kv_indices"}]
"""

BAD = {
    "not toml": ("source = ", "not a valid entry of the catalogue"),
    "an unknown field": (GOOD + "colour = 'red'\n", "unknown field `colour`"),
    "no source": (GOOD.replace('source = "engine PR 1"', ""), "missing required field `source`"),
    "an unknown clause": (GOOD.replace('"writes"', '"sings"'), "Invalid enum value 'sings'"),
    "a wrong type": (GOOD.replace('["1.0"]', '"1.0"'), "Expected `array`, got `str`"),
    "nothing expected": (
        GOOD.replace('expect = [{clause = "writes", buffer = "kv_indices"}]', ""),
        "a driven bug needs target, broken, expect and confirmed",
    ),
    "driven and not": (GOOD + "not_driven = 'no wheel'\n", "not_driven excludes broken"),
    "broken and fixed at once": (
        GOOD.replace('["1.1"]', '["1.0"]'),
        "a release is both broken and fixed",
    ),
}


def folder_with(folder: Path, text: str) -> Path:
    (folder / "engine-pr-1.toml").write_text(text)
    return folder


def test_an_entry_goes_by_the_name_of_its_file(tmp_path: Path) -> None:
    bug = load(folder_with(tmp_path, GOOD))["engine-pr-1"]
    assert (bug.target, bug.broken, bug.fixed) == ("builtin", ("1.0",), ("1.1",))


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_entry_is_named_with_what_is_wrong(name: str, tmp_path: Path) -> None:
    text, what = BAD[name]
    with pytest.raises(UsageError) as raised:
        load(folder_with(tmp_path, text))
    assert "engine-pr-1.toml" in str(raised.value)
    assert what in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_catalogue_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--catalogue"):
        load(tmp_path / "nowhere")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nothing' is not in the catalogue.*engine-pr-1"):
        chosen(load(folder_with(tmp_path, GOOD)), ["nothing"])


def test_a_finding_is_the_bug_by_clause_buffer_and_words() -> None:
    expected = Expectation(clause="writes", buffer="kv_indices", says="red zone")
    assert expected.met_by(finding())
    assert not expected.met_by(finding(clause="reads"))
    assert not expected.met_by(finding(buffer="page_table"))
    assert not expected.met_by(finding(message="another thing"))


@pytest.mark.skipif(not (REPOSITORY / "corpus").is_dir(), reason="needs the repository")
def test_the_projects_own_catalogue_names_targets_that_exist() -> None:
    bugs = load(REPOSITORY / "corpus" / "known_bugs")
    assert bugs
    known = set(target_names())
    unknown = [
        name
        for name, bug in bugs.items()
        for target in (bug.target, bug.fixed_target)
        if target and ":" not in target and target not in known
    ]
    assert unknown == []
