"""Released engines in workers, and the cases that tests run on it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph import releases
from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.finding import Finding
from fuzzgraph.run.spec import Setup
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import open_target
from fuzzgraph.targets.packages import companions_of
from fuzzgraph.worker import WorkerClient, open_client


def release_path(version: str, package: str = "sglang") -> Path:
    """Folder of a release that lies in the cache; the test is skipped where it does not."""
    missing = [name for name in companions_of(package) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed; run 'make {package}'")
    found = [entry for entry in releases.installed() if entry.package == package]
    paths = {entry.version: entry.path for entry in found}
    if version not in paths:
        pytest.skip(f"{package} {version} is not in the cache; run 'make {package}'")
    return paths[version]


class Workers:
    """One child per release, started when first asked for; it changes targets as asked.

    Args:
        overlap: whether steps run with the host a step ahead as well.
    """

    def __init__(
        self,
        folder: Path,
        path_of: Callable[[str], Path] = release_path,
        *,
        overlap: bool = False,
    ) -> None:
        self._folder = folder
        self._path_of = path_of
        self._overlap = overlap
        self._open: dict[str, tuple[str, WorkerClient]] = {}

    def findings(self, version: str, case: Case, target: str) -> tuple[Finding, ...]:
        """What the oracles say of a case that the target must be able to run."""
        verdict = self._client(version, target).run_case(case)
        assert verdict.skipped == ""
        return verdict.findings

    def skipped(self, version: str, case: Case, target: str) -> str:
        """Why the target does not run a case; "" if it does."""
        return self._client(version, target).run_case(case).skipped

    def unserved(self, version: str, config: EngineConfig, target: str) -> str:
        """Why no server of the release has a config; "" if one may."""
        return self._client(version, target).unserved(config)

    def lines(self, version: str, case: Case, target: str) -> tuple[tuple[str, str], ...]:
        """The lines that the first finding is about: role, and the code that stands there."""
        client = self._client(version, target)
        lines = client.engine_lines(case, client.run_case(case).findings[0])
        root = self._path_of(version)
        files = {line.path: (root / line.path).read_text().splitlines() for line in lines}
        return tuple((line.role, files[line.path][line.line - 1].strip()) for line in lines)

    def _client(self, version: str, target: str) -> WorkerClient:
        if version not in self._open:
            paths, folder = [self._path_of(version)], self._folder / version
            self._open[version] = (
                target,
                open_client(
                    Setup(target=target, overlap=self._overlap), paths=paths, folder=folder
                ),
            )
        opened, client = self._open[version]
        if opened != target:
            client.retarget(target)
            self._open[version] = target, client
        return client

    def close(self) -> None:
        for _, client in self._open.values():
            client.close()


def generated(
    target: str, wanted: Callable[[EngineConfig], bool], *, blocks: int, each: int, enough: int = 0
) -> list[Case]:
    """Cases that are drawn for a target and have a config that is wanted.

    Args:
        blocks: draws with seeds of their own, at most.
        each: cases of a draw.
        enough: ends the draws when so many are found; 0: never.
    """
    drawn: list[Case] = []

    def keep(case: Case) -> None:
        if wanted(case.config):
            drawn.append(case)

    driven = open_target(target)
    for block in range(blocks):
        if enough and len(drawn) >= enough:
            break
        strategy = cases(
            driven.capabilities,
            DEFAULT.at(block),
            supports=lambda config: driven.unsupported(config) is None,
        )
        draw(strategy, block, each, keep)
    return drawn


def decode_case(*batches: tuple[int, ...], mode: Mode = "decode", **settings: Any) -> Case:
    """Steps with rows of these lengths; each step has requests of its own, its rows are reused."""
    new = 2 if mode == "target_verify" else 1
    steps = tuple(
        ReplayStep(
            mode=mode,
            rows=tuple(
                BatchRow(request=100 * index + row, seq_len=length, new_tokens=new)
                for row, length in enumerate(lengths)
            ),
            finish=tuple(100 * (index - 1) + row for row in range(len(batches[index - 1])))
            if index
            else (),
        )
        for index, lengths in enumerate(batches)
    )
    config = EngineConfig(
        **{
            "modes": (mode,), "capture_bs": (1, 2, 4), "max_context_len": 64,
            "kv_pool_pages": 300, **settings,
        }
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))
