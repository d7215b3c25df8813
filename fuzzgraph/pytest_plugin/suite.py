"""The ready-made suite: the corpus as tests, and one fuzzing item per process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fuzzgraph import corpus
from fuzzgraph.campaign import Opened, fresh_folder, join_shards, open_setup
from fuzzgraph.errors import UsageError
from fuzzgraph.open_target import check_names
from fuzzgraph.policy import FindingPolicy, load_policy
from fuzzgraph.pytest_plugin.items import BadEntryItem, CorpusItem, FuzzItem, SuiteNode
from fuzzgraph.pytest_plugin.options import Options
from fuzzgraph.reporting import verdict_line
from fuzzgraph.run.events import RunSummary, Setup
from fuzzgraph.run.spec import RunSpec

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter  # pytest 8 has no public name for it


class Suite:
    """Everything the plugin holds for one pytest session."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._options = options
        self._spec = options.spec
        self._config = config
        self._opened: Opened | None = None
        self._folder: Path | None = Path(self._spec.out) if self.in_worker else None
        self.summary: RunSummary | None = None
        try:
            self._check_names()
            self.standing = self._policy()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None

    @property
    def setup(self) -> Setup:
        return self._spec.setup

    def _check_names(self) -> None:
        if self._options.fuzz and not self.in_worker:
            check_names(self.setup)

    def _policy(self) -> FindingPolicy:
        spec = self._spec
        ledger, baseline = (Path(name) if name else None for name in (spec.ledger, spec.baseline))
        return load_policy(ledger, baseline, only_new=spec.only_new)

    @property
    def in_worker(self) -> bool:
        """Whether this is one of xdist's processes."""
        return hasattr(self._config, "workerinput")

    @property
    def shards(self) -> int:
        if not self.in_worker:
            return 1
        workerinput: dict[str, Any] = self._config.workerinput  # type: ignore[attr-defined]
        return int(workerinput.get("workercount", 1))

    def for_workers(self) -> dict[str, Any]:
        """Plain values for the processes of xdist: one seed, one folder."""
        return self._options.plain(str(self.folder()) if self._options.fuzz else "")

    def folder(self) -> Path:
        """The folder of the run, made when it is first needed."""
        if self._folder is None:
            out = Path(self._spec.out) if self._spec.out else None
            try:
                self._folder = fresh_folder(out, self._spec.seed).resolve()
            except UsageError as error:
                raise pytest.UsageError(str(error)) from None
        return self._folder

    def opened(self) -> Opened:
        """The target, opened when it is first needed and shared by all items."""
        if self._opened is None:
            self._opened = open_setup(self.setup)
        return self._opened

    def spec(self, shard: int) -> RunSpec:
        """What one process is asked; the examples are divided over all of them."""
        spec = msgspec.structs.replace(self._spec, out=str(self.folder()))
        return spec.of_shard(shard, self.shards)

    def add_items(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Append the corpus, and the fuzzing items where each process gets one at once."""
        node = SuiteNode.from_parent(session, name="fuzzgraph", nodeid="fuzzgraph")
        if self._options.corpus:
            items += self._corpus_items(node)
        if self._options.fuzz:
            self._add_fuzz_items(node, items)

    def _corpus_items(self, node: SuiteNode) -> list[pytest.Item]:
        try:
            loaded = corpus.load(Path(self._options.corpus))
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
        good: list[pytest.Item] = [
            CorpusItem.from_parent(node, name=f"corpus[{entry.path.stem}]", entry=entry, suite=self)
            for entry in loaded.entries
        ]
        return good + [
            BadEntryItem.from_parent(node, name=f"corpus[{entry.path.stem}]", message=entry.message)
            for entry in loaded.bad
        ]

    def _add_fuzz_items(self, node: SuiteNode, items: list[pytest.Item]) -> None:
        shards = self.shards
        fuzzing: list[pytest.Item] = [
            FuzzItem.from_parent(node, name=self._name(shard), shard=shard, suite=self)
            for shard in range(shards)
        ]
        if shards == 1:
            items += fuzzing
            return
        # xdist's `load` hands each process a run of this many items first.
        first = max((len(items) + shards) // (4 * shards), 2) if items else 1
        for shard, item in enumerate(fuzzing):
            items.insert(min(shard * first, len(items)), item)

    def make_ready(self, items: Sequence[pytest.Item]) -> None:
        """Make the folder of the run where something of it will run.

        Raises:
            pytest.UsageError: it cannot be written.
        """
        if not self._config.option.collectonly and any(isinstance(one, FuzzItem) for one in items):
            self.folder()

    def _name(self, shard: int) -> str:
        part = f"-{shard + 1}of{self.shards}" if self.shards > 1 else ""
        return f"fuzz[{self.setup.fault or self.setup.target}{part}]"

    def write_end(self, reporter: TerminalReporter) -> None:
        """The figures of the run below pytest's own summary."""
        if self.in_worker or not self._options.fuzz or self._folder is None:
            return
        summary = self.summary or join_shards(self._folder)
        if summary is None:
            return
        reporter.section("fuzzgraph")
        reporter.line(f"{verdict_line(summary)}; seed {summary.seed}; report in {summary.out}")

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
