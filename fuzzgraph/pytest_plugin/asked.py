"""What the command line and the ini file ask of the plugin. Imports nothing heavy."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

if TYPE_CHECKING:
    from fuzzgraph.run_spec import Profile

__all__ = ["ASKED", "Asked", "add_options", "asked_of"]

DEFAULT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """Plain values only: xdist hands them to its workers."""

    WORKER_KEY: ClassVar[str] = "fuzzgraph"

    fuzz: bool
    corpus: str
    """Folder of the corpus; '' for none."""
    target: str = "builtin"
    release: str = ""
    fault: str = ""
    device: str = "cpu"
    graphs: str = ""
    profile: Profile = "ci"
    seconds: float | None = None
    examples: int | None = None
    seed: int = 0
    out: str = ""
    ledger: str = ""
    baseline: str = ""
    only_new: bool = False
    database: str = ""
    isolation: str = ""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


ASKED: pytest.StashKey[Asked] = pytest.StashKey()


def add_options(parser: pytest.Parser) -> None:
    """Register `--fuzz` and its kin, and the ini names."""
    group = parser.getgroup("fuzzgraph", "fuzzing of captured GPU graphs")
    group.addoption("--fuzz", action="store_true", help="fuzz a target besides running the tests")
    group.addoption("--fuzz-time", metavar="TIME", help="how long, e.g. 60s, 10m, 8h [60s]")
    group.addoption("--fuzz-examples", metavar="N", help="how many generated cases")
    group.addoption("--fuzz-seed", metavar="N", help="same seed, same cases")
    group.addoption("--fuzz-target", metavar="NAME", help="engine under test [builtin]")
    group.addoption("--fuzz-release", metavar="V", default="", help="its release, e.g. 0.5.12")
    group.addoption("--fuzz-fault", metavar="NAME", default="", help="plant a fault in builtin")
    group.addoption("--fuzz-device", metavar="D", default="cpu", help="cpu or cuda [cpu]")
    group.addoption("--fuzz-graphs", metavar="G", default="", help="recorder or device")
    group.addoption("--fuzz-isolation", metavar="I", default="", help="on or off")
    group.addoption("--fuzz-profile", metavar="P", default="ci", help="ci or nightly [ci]")
    group.addoption("--fuzz-corpus", metavar="DIR", help="run the cases of this folder as tests")
    group.addoption("--fuzz-out", metavar="DIR", help="new folder of the run")
    group.addoption("--fuzz-ledger", metavar="FILE", help="tolerated and quarantined findings")
    group.addoption("--fuzz-baseline", metavar="FILE", help="findings that were there before")
    group.addoption("--fuzz-database", metavar="DB", help="share cases: dir:FOLDER, redis://...")
    group.addoption("--fuzz-only-new", action="store_true", help="fail for others only")
    parser.addini("fuzzgraph_corpus", "folder of cases that plain pytest runs as tests")
    parser.addini("fuzzgraph_target", "engine under test of --fuzz and of the corpus")


def asked_of(config: pytest.Config) -> Asked | None:
    """What is asked here; None for nothing, which is the rule in other people's projects.

    Raises:
        pytest.UsageError: an option's value is wrong, in one line.
    """
    if hasattr(config, "workerinput"):
        return _asked_of_worker(config)
    fuzz = bool(config.getoption("--fuzz"))
    corpus = _corpus(config, fuzz)
    if not fuzz:
        _refuse_without_fuzz(config)
        if not corpus:
            return None
    _refuse_without_torch()
    return _checked(config, corpus) if fuzz else _without_fuzz(config, corpus)


def _asked_of_worker(config: pytest.Config) -> Asked | None:
    workerinput: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    plain = workerinput.get(Asked.WORKER_KEY)
    return Asked(**plain) if plain else None


def _corpus(config: pytest.Config, fuzz: bool) -> str:
    """The folder whose cases become tests; '' for none."""
    if named := config.getoption("--fuzz-corpus"):
        return str(named)
    configured = config.getini("fuzzgraph_corpus")
    folder = config.rootpath / str(configured or "corpus/cases")
    if fuzz and not configured:
        return str(folder) if folder.is_dir() else ""
    explicit = config.args_source is pytest.Config.ArgsSource.ARGS
    return "" if not configured or (explicit and not fuzz) else str(folder)


_ONLY_FUZZ = ("time", "examples", "seed", "out", "baseline", "database")


def _refuse_without_fuzz(config: pytest.Config) -> None:
    for name in _ONLY_FUZZ:
        if config.getoption(f"--fuzz-{name}") is not None:
            raise pytest.UsageError(f"--fuzz-{name} does nothing without --fuzz. Add --fuzz.")


def _refuse_without_torch() -> None:
    from fuzzgraph.torch_import import torch_problem

    problem = torch_problem()
    if problem is not None:
        raise pytest.UsageError(str(problem))


def _without_fuzz(config: pytest.Config, corpus: str) -> Asked:
    ledger = str(config.getoption("--fuzz-ledger") or "")
    return Asked(fuzz=False, corpus=corpus, ledger=ledger, **_setup(config))


def _setup(config: pytest.Config) -> dict[str, Any]:
    target = config.getoption("--fuzz-target") or config.getini("fuzzgraph_target") or "builtin"
    names = ("release", "fault", "device", "graphs", "isolation", "profile")
    rest = {name: str(config.getoption(f"--fuzz-{name}")) for name in names}
    return {"target": str(target), **rest}


def _checked(config: pytest.Config, corpus: str) -> Asked:
    from fuzzgraph.case_database import checked_database
    from fuzzgraph.errors import UsageError
    from fuzzgraph.run_spec import parse_time

    time = config.getoption("--fuzz-time")
    examples = _whole_number(config, "examples")
    seed = _whole_number(config, "seed")
    try:
        named = str(config.getoption("--fuzz-database") or "")
        database = checked_database(named, "--fuzz-database")
        seconds = parse_time(str(time), "--fuzz-time") if time is not None else None
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    if seconds is None and examples is None:
        seconds = DEFAULT_SECONDS
    return Asked(
        fuzz=True,
        corpus=corpus,
        seconds=seconds,
        examples=examples,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        out=str(config.getoption("--fuzz-out") or ""),
        ledger=str(config.getoption("--fuzz-ledger") or ""),
        baseline=str(config.getoption("--fuzz-baseline") or ""),
        only_new=_only_new(config),
        database=database,
        **_setup(config),
    )


def _only_new(config: pytest.Config) -> bool:
    asked = bool(config.getoption("--fuzz-only-new"))
    if asked and not config.getoption("--fuzz-baseline"):
        raise pytest.UsageError("--fuzz-only-new needs a baseline. Name it with --fuzz-baseline.")
    return asked


def _whole_number(config: pytest.Config, name: str) -> int | None:
    value = config.getoption(f"--fuzz-{name}")
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isdigit()):
        raise pytest.UsageError(f"--fuzz-{name}={text!r} is no whole number >= 0. Use one, e.g. 3.")
    return int(text)
