"""`fuzzgraph.toml` and `[tool.fuzzgraph]`: where they are looked for, and what they may say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.run.option import OptionRow
from fuzzgraph.run.settings_file import Settings, find_settings
from fuzzgraph.run.spec import OPTIONS, RunSpec
from fuzzgraph.run_options import checked_spec

REFUSED = [row for row in OPTIONS if row.option.refused]
TAKEN = [row for row in OPTIONS if not row.option.refused]


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a checkout; the current folder lies two folders below it."""
    top = tmp_path / "engine"
    (top / ".git").mkdir(parents=True)
    (top / "python" / "pkg").mkdir(parents=True)
    monkeypatch.chdir(top / "python" / "pkg")
    return top


def written(top: Path, text: str, name: str = "fuzzgraph.toml") -> Path:
    path = top / name
    path.write_text(text)
    return path


def found(source: str = "") -> Settings:
    settings = find_settings(source)
    assert settings is not None
    return settings


def refusal(top: Path, text: str) -> str:
    path = written(top, text)
    with pytest.raises(UsageError) as caught:
        find_settings()
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message


def in_toml(row: OptionRow) -> tuple[str, object]:
    """A value as the file has it, and what becomes of it; none is the default."""
    if row.kind == "flag":
        return "true", True
    if row.kind == "choice":
        word = next(word for word in row.choices if word != row.default)
        return f'"{word}"', word
    if row.kind == "number":
        return "7", 7
    return ('"2m"', 120.0) if row.kind == "duration" else ('"0.5.12"', "0.5.12")


@pytest.mark.parametrize("row", TAKEN, ids=lambda row: row.word)
def test_each_option_stands_there_under_its_name(top: Path, row: OptionRow) -> None:
    text, value = in_toml(row)
    written(top, f"{row.word} = {text}\n")
    given = found().given
    assert given == {row.name: str(top / str(value)) if row.option.path else value}
    assert given[row.name] != row.default


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.word)
def test_what_a_file_may_not_give_is_refused_with_the_reason(top: Path, row: OptionRow) -> None:
    assert f"{row.word} cannot be given by a file: " in refusal(top, f'{row.word} = "any"\n')


def test_a_file_reaches_no_network_no_other_tree_and_no_code() -> None:
    """What the table says; a row that this list lacks is a decision to make."""
    assert {row.name for row in REFUSED} == {"source", "tree", "database"}
    assert {row.name for row in OPTIONS if row.option.path} == {
        "source", "corpus", "ledger", "baseline", "out",
    }  # fmt: skip


def test_the_nearest_file_counts_and_the_root_of_the_checkout_is_the_last(top: Path) -> None:
    written(top.parent, 'time = "1s"\n')
    assert find_settings() is None
    far = written(top, 'time = "2s"\n')
    assert found().path == far
    near = written(top / "python", 'time = "3s"\n')
    assert (found().path, dict(found().given)) == (near, {"seconds": 3.0})


def test_outside_a_checkout_only_the_folder_itself_is_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzgraph.run.settings_file._root", lambda folder: folder)
    written(tmp_path, "")
    (tmp_path / "below").mkdir()
    assert find_settings(str(tmp_path)) is not None
    assert find_settings(str(tmp_path / "below")) is None


def test_a_source_is_looked_in_and_the_current_folder_is_not(top: Path, tmp_path: Path) -> None:
    written(top, 'time = "2s"\n')
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    assert find_settings(str(other)) is None
    path = written(other, 'time = "5s"\n')
    assert found(str(other)).path == path
    assert find_settings(str(tmp_path / "missing")) is None


def test_the_table_of_a_pyproject_counts_where_no_file_of_its_own_lies_beside_it(
    top: Path,
) -> None:
    written(top, '[project]\nname = "engine"\n', "pyproject.toml")
    assert find_settings() is None
    path = written(top, '[tool.fuzzgraph]\ntime = "2s"\n', "pyproject.toml")
    assert (found().path, dict(found().given)) == (path, {"seconds": 2.0})
    assert found().path == path
    own = written(top, 'time = "3s"\n')
    assert found().path == own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tiem = 3", "'tiem' is unknown. Did you mean 'time'?"),
        ("only_new = true", "'only_new' is unknown. Did you mean 'only-new'?"),
        ("seconds = 3", "'seconds' is unknown"),
        ("zzzz = 3", "'zzzz' is unknown. Known are: target, release"),
        ("examples = true", "examples has no value of its kind (Expected `int`, got `bool`)"),
        ('examples = "3"', "Write for example examples = 3."),
        ("examples = -1", "examples='-1' is not a whole number >= 0"),
        ("findings = 0", "findings='0' is not a whole number >= 1"),
        ("time = true", "time has no value of its kind"),
        ("time = nan", "time='nan' is not a valid duration"),
        ('time = "soon"', "time='soon' is not a valid duration"),
        ("strict-nan = 1", "strict-nan has no value of its kind (Expected `bool`, got `int`)"),
        ('device = "tpu"', "device='tpu' is unknown. Use one of: cpu, cuda."),
        ("release = 0.5", "release has no value of its kind (Expected `str`, got `float`)"),
        ("seed = 1\nseed = 2", "cannot be read"),
        ("seed = 0x" + "f" * 5000, "seed has no value of its kind"),
        ("= 3", "cannot be read"),
        ("time = " + "[" * 100_000, "cannot be read"),
        ('targets = "sglang-fa3"', "targets is not a list of names (Expected `array`, got `str`)"),
        ("targets = [3]", "targets is not a list of names"),
        ("targets = []", "name at least one target"),
        ('targets = ["a", "a"]', "and each of them once"),
        ('target = "evil:make"', "'evil:make' is code to import"),
        ('targets = ["a", "evil:make"]', "'evil:make' is code to import"),
        ('ledger = "../ledger.toml"', "leads out of"),
        ('ledger = "/etc/passwd"', "leads out of"),
        ('ledger = "link/ledger.toml"', "leads out of"),
        ('ledger = "a\\u0000b"', "leads out of"),
        ('out = ".git/hooks/x"', "leads out of"),
        ('out = ".GIT/x"', "leads out of"),
    ],
)
def test_what_it_may_not_say_is_one_line(top: Path, text: str, said: str) -> None:
    (top / "link").symlink_to(top.parent)
    assert said in refusal(top, text)


def test_paths_are_relative_to_the_file_and_may_climb_inside_the_checkout(top: Path) -> None:
    written(top / "python", 'ledger = "../ci/ledger.toml"\ncorpus = "cases"\n')
    given = found().given
    assert given["ledger"] == str(top / "ci" / "ledger.toml")
    assert given["corpus"] == str(top / "python" / "cases")


def test_a_file_that_is_none_or_leads_out_is_refused(top: Path) -> None:
    outside = written(top.parent, 'time = "1s"\n', "outside.toml")
    place = top / "fuzzgraph.toml"
    place.symlink_to(outside)
    with pytest.raises(UsageError, match="a link that leads out of its checkout"):
        find_settings()
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(UsageError, match="it is not a file"):
        find_settings()
    place.unlink()
    place.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        find_settings()
    place.write_bytes(b"#" * (1 << 21))
    with pytest.raises(UsageError, match="it has more than 1 MiB"):
        find_settings()


def test_the_table_of_a_pyproject_is_a_table(top: Path) -> None:
    written(top, "[tool]\nfuzzgraph = 3\n", "pyproject.toml")
    with pytest.raises(UsageError, match=r"Write \[tool.fuzzgraph\]"):
        find_settings()
    written(top, "tool = 3\n", "pyproject.toml")
    assert find_settings() is None


def asked(top: Path, text: str, **given: object) -> RunSpec:
    written(top, text)
    return checked_spec(given, settings=find_settings())


def test_settings_stand_between_the_defaults_and_the_options(top: Path) -> None:
    text = 'time = "10m"\nprofile = "nightly"\nseed = 5\n'
    spec = asked(top, text, seed=6)
    assert (spec.budget.seconds, spec.profile, spec.seed) == (600.0, "nightly", 6)
    assert spec.settings == str(top / "fuzzgraph.toml")
    assert spec.shrink_seconds == 60.0
    written(top, text)
    defaults = {"profile": "ci", "isolation": "on"}
    spec = checked_spec({}, settings=find_settings(), defaults=defaults)
    assert (spec.profile, spec.setup.isolation) == ("nightly", "on")


def test_one_of_several_targets_is_taken_where_it_is_the_only_one_or_named(top: Path) -> None:
    assert asked(top, 'targets = ["sglang-fa3"]').setup.target == "sglang-fa3"
    several = 'targets = ["sglang-fa3", "sglang-aiter"]\n'
    assert asked(top, several + 'target = "builtin"').setup.target == "builtin"
    assert asked(top, several, target="builtin").setup.target == "builtin"
    with pytest.raises(UsageError, match="targets names 2 of them, and this takes one"):
        asked(top, several)
    assert found().targets == ("sglang-fa3", "sglang-aiter")


def test_an_option_that_the_file_contradicts_says_what_the_file_gave(top: Path) -> None:
    with pytest.raises(UsageError, match=r"has no releases.* Given by .*fuzzgraph.toml: release"):
        asked(top, 'release = "0.5.12"\ntarget = "sglang-fa3"', target="builtin")
    with pytest.raises(UsageError, match=r"needs a baseline.* Given by .*: only-new\."):
        asked(top, "only-new = true")


def test_a_source_on_the_command_line_takes_the_place_of_the_files_release(top: Path) -> None:
    written(top, 'release = "0.5.12"\ntarget = "sglang-fa3"\n')
    assert found().below({"source": "tree", "release": None}) == {
        "source": "tree",
        "target": "sglang-fa3",
    }
