"""Loading sglang: explicit stand-ins, one line where something is missing."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.errors import AdapterUnavailable, EngineError, KernelNotModelled
from fuzzgraph.layout import plan
from fuzzgraph.targets import open_target
from fuzzgraph.targets.offline import import_stubs
from fuzzgraph.targets.offline.import_stubs import allow_absent
from fuzzgraph.targets.offline.package import EnginePackage, call_with_known
from fuzzgraph.targets.offline.used import below_lengths
from fuzzgraph.targets.sglang import release
from fuzzgraph.targets.sglang.forward_batch.decode import _tree_mask
from fuzzgraph.targets.sglang.stubs.absent_modules import ABSENT
from fuzzgraph.targets.sglang.stubs.platform import cuda_server


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package called sglang, which is none; imports are undone afterwards."""
    package = tmp_path / "sglang" / "srt"
    package.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("raise RuntimeError('starts a server')\n")
    (package / "__init__.py").write_text("")
    modules, finders = dict(sys.modules), list(sys.meta_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(EnginePackage, "_interpret_triton", lambda self: None)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    sys.meta_path[:] = finders
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def test_the_packages_own_init_is_not_run(toy: Path) -> None:
    (toy / "part.py").write_text("VALUE = 3\n")
    assert release.engine_module("sglang.srt.part").VALUE == 3


def test_a_missing_companion_is_named_with_the_way_out(toy: Path) -> None:
    (toy / "part.py").write_text("import no_such_companion.inner\n")
    with pytest.raises(AdapterUnavailable, match="'no_such_companion'.*make sglang"):
        release.engine_module("sglang.srt.part")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nfrom torch import no_such_name\n", r"ImportError: .*'no_such_name'.*part\.py:2"),
        ("import torch\ntorch.no_such_name\n", r"AttributeError: .*'no_such_name'.*part\.py:2"),
        ("VALUE = (\n", r"SyntaxError: .*part\.py:1"),
    ],
)  # fmt: skip
def test_code_that_asks_for_another_torch_or_python_is_told_in_one_line(
    toy: Path, text: str, said: str
) -> None:
    (toy / "part.py").write_text(text)
    with pytest.raises(AdapterUnavailable, match=said) as told:
        release.engine_module("sglang.srt.part")
    assert f"another torch than {torch.__version__}" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_module_that_the_release_lacks_is_named(toy: Path) -> None:
    with pytest.raises(AdapterUnavailable, match="no module 'sglang.srt.absent_part'"):
        release.engine_module("sglang.srt.absent_part")


def test_a_listed_module_is_stood_in_for(toy: Path) -> None:
    (toy / "part.py").write_text(
        "from sgl_kernel.ops import Plan, launch\n"
        "class Mine(Plan):\n    pass\n"
        "@launch\ndef kept(): return 5\n"
    )
    part = release.engine_module("sglang.srt.part")
    assert part.kept() == 5
    assert isinstance(part.Mine(), part.Plan)


def test_an_installed_module_wins_over_its_stand_in(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ABSENT, "installed_here", "for this test")
    (toy.parent.parent / "installed_here.py").write_text("REAL = True\n")
    (toy / "part.py").write_text("import installed_here\nSEEN = installed_here.REAL\n")
    assert release.engine_module("sglang.srt.part").SEEN is True


def test_what_the_engine_prints_at_import_stays_off_stdout(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy / "part.py").write_text("print('hint about kernels')\n")
    release.engine_module("sglang.srt.part")
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", "hint about kernels\n")


def test_a_setting_of_the_shell_that_changes_the_engine_is_refused(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_USE_AITER_UNIFIED_ATTN", "1")
    (toy / "part.py").write_text("")
    with pytest.raises(AdapterUnavailable, match="SGLANG_USE_AITER_UNIFIED_ATTN='1'.*Unset it"):
        release.engine_module("sglang.srt.part")


def test_every_stand_in_has_its_reason() -> None:
    assert [name for name, reason in ABSENT.items() if len(reason) < 10] == []


def test_the_finder_is_last_and_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    allow_absent(ABSENT)
    once = len(sys.meta_path)
    allow_absent(ABSENT)
    assert len(sys.meta_path) == once
    assert isinstance(sys.meta_path[-1], import_stubs._Finder)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("kv_dtype", "float8_e4m3fn"), ("sliding_window", 4), ("attn_tp_size", 8),
     ("modes", ("decode", "target_verify"))],
)  # fmt: skip
def test_what_is_not_driven_is_said(setting: str, value: object) -> None:
    config = EngineConfig(**{setting: value})  # type: ignore[arg-type]
    said = open_target("sglang-aiter").unsupported(config)
    assert said is not None
    assert str(value if not isinstance(value, tuple) else list(value)) in said.replace('"', "'")


def test_a_context_without_room_for_a_captured_verify_row_is_refused() -> None:
    config = EngineConfig(modes=("target_verify",), max_context_len=10, draft_tokens=4)
    assert open_target("sglang-aiter-verify").unsupported(config) is not None
    roomy = EngineConfig(modes=("target_verify",), max_context_len=11, draft_tokens=4)
    assert open_target("sglang-aiter-verify").unsupported(roomy) is None


def test_what_is_driven_is_not_refused() -> None:
    assert (
        open_target("sglang-aiter").unsupported(EngineConfig(page_size=16, page_map="page_table"))
        is None
    )


def test_only_pages_below_a_rows_length_count_as_used() -> None:
    table = torch.arange(1, 13).view(3, 4)
    used = below_lengths(table, torch.tensor([5, 0, 8]), page_size=4)
    assert used.tolist() == [[1, 2], [0, 0], [9, 10]]


def test_a_chain_of_drafts_sees_the_past_and_its_own_beginning() -> None:
    config = EngineConfig(modes=("target_verify",), draft_tokens=3)
    row = BatchRow(request=0, seq_len=5, new_tokens=3)
    step = ReplayStep(mode="target_verify", rows=(row,))
    (batch,) = plan(Case(schema_version=1, config=config, steps=(step,)))
    mask = _tree_mask(batch, batch.cached_lens, "cpu").view(3, 5)
    assert np.array_equal(mask.numpy(), np.tri(3, 5, 2, dtype=bool))


def test_a_target_that_the_release_lacks_is_named_in_one_line(toy: Path) -> None:
    target: Any = open_target("sglang-frozen-kv-mtp")
    with pytest.raises(AdapterUnavailable, match="has no FrozenKVMTPCudaGraphRunner") as raised:
        target.load()
    assert "'sglang-frozen-kv-mtp'" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_only_arguments_that_a_release_knows_are_given() -> None:
    def older(size: int) -> int:
        return size

    assert call_with_known(older, size=3, layout="later") == 3


_CALLER = "from sgl_kernel.ops import launch\nimport aiter.ops\n"


def test_a_kernel_that_is_absent_can_be_named_and_not_be_called(toy: Path) -> None:
    (toy / "part.py").write_text(f"{_CALLER}launch()\ndef run(): return launch.now[1](5)\n")
    part = release.engine_module("sglang.srt.part")
    with pytest.raises(KernelNotModelled, match=r"sgl_kernel\.ops\.launch\.now is called"):
        part.run()


def test_what_a_server_with_cuda_cannot_import_is_the_engines_error(toy: Path) -> None:
    (toy / "part.py").write_text(f"{_CALLER}def run(): return aiter.ops.logits(5)\n")
    part = release.engine_module("sglang.srt.part")
    with pytest.raises(KernelNotModelled):
        part.run()
    with cuda_server(), pytest.raises(EngineError, match=r"aiter\.ops\.logits .* on ROCm alone"):
        part.run()


def test_an_object_whose_wrapped_method_was_called_is_not_kept() -> None:
    class Backend:
        def attend(self, size: int) -> int:
            return size

    def watched(method: Any) -> Any:
        return functools.wraps(method)(lambda *args, **kwargs: method(*args, **kwargs))

    backend = Backend()
    assert call_with_known(watched(backend.attend), size=3, layout="later") == 3
    gone = weakref.ref(backend)
    del backend
    gc.collect()
    assert gone() is None
