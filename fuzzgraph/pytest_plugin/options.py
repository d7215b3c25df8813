"""What the command line and the ini file ask of the plugin. Imports nothing heavy until it is used.

The options of a run come from the table in `run.spec`, as `--fuzz-NAME`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fuzzgraph.run.option import OptionRow
    from fuzzgraph.run.settings_file import Settings
    from fuzzgraph.run.spec import RunSpec

WORKER_KEY = "fuzzgraph"
"""In xdist's `workerinput`."""
_DASH = "--fuzz-"
_NO_SETTINGS = "--fuzz-no-settings"


class Options:
    """What is asked of the plugin in one pytest session.

    Args:
        fuzz: whether a fuzzing item is added.
        corpus: folder whose cases become tests; '' for none.
        spec: of the run; without `fuzz` only its setup and its ledger count.
    """

    def __init__(self, fuzz: bool, corpus: str, spec: RunSpec) -> None:
        self.fuzz = fuzz
        self.corpus = corpus
        self.spec = spec

    def plain(self, out: str) -> dict[str, Any]:
        """The same for a process of xdist, in plain values, with the folder of the run."""
        import msgspec

        spec = msgspec.structs.replace(self.spec, out=out)
        return {"fuzz": self.fuzz, "corpus": self.corpus, "spec": msgspec.to_builtins(spec)}

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> Options:
        """What `plain` gave."""
        import msgspec

        from fuzzgraph.run.spec import RunSpec

        spec = msgspec.convert(plain["spec"], RunSpec)
        return Options(bool(plain["fuzz"]), str(plain["corpus"]), spec)


OPTIONS_KEY: pytest.StashKey[Options] = pytest.StashKey()


def _rows() -> list[OptionRow]:
    from fuzzgraph.run.spec import OPTIONS

    return [row for row in OPTIONS if row.option.pytest]


def add_options(parser: pytest.Parser) -> None:
    """Register `--fuzz`, a `--fuzz-NAME` for each option of a run, and the ini names."""
    group = parser.getgroup("fuzzgraph", "fuzzing of captured GPU graphs")
    group.addoption("--fuzz", action="store_true", help="fuzz a target besides running the tests")
    for row in _rows():
        said = row.option.help.replace("%", "%%")
        if row.kind == "flag":
            group.addoption(_DASH + row.word, action="store_true", default=None, help=said)
        else:
            group.addoption(_DASH + row.word, metavar=row.metavar.strip("[]"), help=said)
        if row.option.ini:
            parser.addini(row.option.ini, said)
    group.addoption(
        _NO_SETTINGS,
        action="store_true",
        default=None,
        help="Pass over fuzzgraph.toml and [tool.fuzzgraph] of pyproject.toml.",
    )
    group.addoption("--fuzz-corpus", metavar="DIR", help="Run the cases of this folder as tests.")
    parser.addini("fuzzgraph_corpus", "folder of cases that plain pytest runs as tests")


def options_of(config: pytest.Config) -> Options | None:
    """What is asked here; None for nothing, which is the rule in other people's projects.

    Raises:
        pytest.UsageError: an option's value is wrong, in one line.
    """
    if hasattr(config, "workerinput"):
        workerinput: dict[str, Any] = config.workerinput
        plain = workerinput.get(WORKER_KEY)
        return Options.of_plain(plain) if plain else None
    fuzz = bool(config.getoption("--fuzz"))
    if not fuzz:
        _refuse_without_fuzz(config)
        if not _corpus(config, fuzz, None):
            return None
    settings = _settings(config)
    corpus = _corpus(config, fuzz, settings)
    _refuse_without_torch()
    return Options(fuzz, corpus, _spec(config, settings))


def _settings(config: pytest.Config) -> Settings | None:
    from fuzzgraph.errors import UsageError
    from fuzzgraph.run.settings_file import find_settings

    if config.getoption(_NO_SETTINGS):
        return None
    try:
        return find_settings(config.getoption("--fuzz-source") or "")
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _corpus(config: pytest.Config, fuzz: bool, settings: Settings | None) -> str:
    """The folder whose cases become tests; '' for none."""
    if named := config.getoption("--fuzz-corpus"):
        return str(named)
    configured = config.getini("fuzzgraph_corpus")
    if fuzz and not configured and settings is not None and "corpus" in settings.given:
        return str(settings.given["corpus"])
    folder = config.rootpath / str(configured or "corpus/cases")
    if fuzz and not configured:
        return str(folder) if folder.is_dir() else ""
    explicit = config.args_source is pytest.Config.ArgsSource.ARGS
    return "" if not configured or (explicit and not fuzz) else str(folder)


def _refuse_without_fuzz(config: pytest.Config) -> None:
    """Only the setup and the ledger mean something to the corpus tests."""
    from fuzzgraph.run.spec import SETUP_OPTIONS

    for row in _rows():
        flag = _DASH + row.word
        if row in SETUP_OPTIONS or row.name == "ledger" or config.getoption(flag) is None:
            continue
        raise pytest.UsageError(f"{flag} does nothing without --fuzz. Add --fuzz.")


def _refuse_without_torch() -> None:
    from fuzzgraph.process.torch_import import torch_problem

    problem = torch_problem()
    if problem is not None:
        raise pytest.UsageError(str(problem))


def _spec(config: pytest.Config, settings: Settings | None) -> RunSpec:
    from fuzzgraph.errors import UsageError
    from fuzzgraph.run_options import checked_spec

    try:
        given = {row.name: _given(config, row) for row in _rows()}
        return checked_spec(given, dash=_DASH, settings=settings)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _given(config: pytest.Config, row: OptionRow) -> Any:
    """The value on the command line, else that of the ini file, else None."""
    flag = _DASH + row.word
    value = config.getoption(flag)
    if value is None and row.option.ini:
        value = config.getini(row.option.ini) or None
    return value if value is None or row.kind == "flag" else row.parse(str(value), flag)
