"""What is kept of a wheel, and that each file is what its maker packed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.releases.wheel import DamagedWheel, is_wanted, unpack
from tests.unit.releases.wheels import COMPILED, files_in, make_wheel, recorded

INFO = "toyengine-1.0.dist-info"
ALWAYS = {f"{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL")} | {"toyengine/__init__.py"}


def kept(name: str, size: int = 100) -> bool:
    member = zipfile.ZipInfo(name)
    member.file_size = size
    return is_wanted(member)


def unpacked(wheel: Path) -> dict[str, bytes]:
    folder = wheel.parent / "unpacked"
    unpack(wheel, folder, "toyengine==1.0")
    return files_in(folder)


@pytest.mark.parametrize(
    "name",
    [
        "engine/model.py", "engine/__init__.pyi", "engine/py.typed", "engine/configs/E=8.json",
        "engine/v1.so.1.json",
        "engine/defaults.yaml", "engine/pyproject.toml", "engine/tuned.csv", "engine/name.jinja",
        "engine/jit/csrc/decode.cu", "engine/jit/include/util.cuh", "engine/jit/csrc/store.cpp",
        "engine/ops/core.s", "engine/flash_attn/cute/softmax.py", "engine/cutlass/generator.py",
        "engine-1.0.dist-info/RECORD", "engine-1.0.dist-info/METADATA", "engine/LICENSE",
    ],
)  # fmt: skip
def test_what_host_code_reads_is_kept(name: str) -> None:
    assert kept(name)


@pytest.mark.parametrize(
    "name",
    [
        "engine/_C.abi3.so", "engine.libs/libomp.so.5", "engine/_C.SO", "engine/decode.cubin",
        "engine/kernel.hsaco", "engine/kernel.co", "engine/kernel.ptx", "engine/a.pyc",
        "engine/static/app.js", "engine/static/picture.jpg", "engine/csrc/",
        "engine/data/cutlass/include/cute/mma.hpp", "engine/data/cccl/cub/block.cuh",
        "engine/include/cute/layout.hpp",
    ],
)  # fmt: skip
def test_what_is_compiled_or_only_compiled_from_is_left_out(name: str) -> None:
    assert not kept(name)


def test_folders_that_host_code_does_not_read_are_left_out() -> None:
    def is_kept(name: str) -> bool:
        return is_wanted(zipfile.ZipInfo(name), unread=("engine/data", "engine/moe"))

    assert not is_kept("engine/data/csrc/decode.cu") and not is_kept("engine/moe/__init__.py")
    assert is_kept("engine/database.py") and is_kept("engine/models/moe/layer.py")


def test_a_program_without_a_suffix_is_told_by_its_size() -> None:
    assert not kept("engine/engine-rs", 38 << 20)


def test_generated_kernels_are_told_by_their_size() -> None:
    assert kept("engine/csrc/launcher.cu", 204_815)
    assert not kept("engine/csrc/generated.cu", 4 << 20)


def test_python_is_kept_whatever_its_size() -> None:
    assert kept("engine/generated.py", 38 << 20)


def test_compiled_code_does_not_reach_the_folder(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, extra={"toyengine/_C.so": COMPILED, "toyengine/m.py": "M = 1\n"})
    found = unpacked(wheel)
    assert set(found) == ALWAYS | {"toyengine/m.py"}
    assert found["toyengine/m.py"] == b"M = 1\n"


def test_a_name_with_a_comma_is_found_in_the_record(tmp_path: Path) -> None:
    name = "toyengine/configs/N=8,K=8.json"
    assert unpacked(make_wheel(tmp_path, extra={name: "{}"}))[name] == b"{}"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (recorded(b"M = 2\n"), "does not match its sha256 in RECORD"),
        ("", "RECORD has no sha256"),
        ("md5=8d777f385d3dfec8815d20f7496026dc", "RECORD has no sha256"),
        ("sha256=", "does not match its sha256"),
    ],
    ids=["another hash", "no line", "a weak hash", "an empty hash"],
)
def test_a_file_that_its_record_does_not_confirm_is_refused(
    tmp_path: Path, said: str, why: str
) -> None:
    """Its checksum in the archive is right: only the record can tell."""
    wheel = make_wheel(
        tmp_path, extra={"toyengine/m.py": "M = 1\n"}, records={"toyengine/m.py": said}
    )
    with pytest.raises(DamagedWheel, match=why):
        unpacked(wheel)


def test_a_file_that_is_left_out_is_not_compared(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path, extra={"toyengine/_C.so": COMPILED}, records={"toyengine/_C.so": "sha256=other"}
    )
    assert set(unpacked(wheel)) == ALWAYS


def test_a_wheel_with_two_records_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, extra={"other-1.0.dist-info/RECORD": "toyengine/__init__.py,,\n"})
    with pytest.raises(DamagedWheel, match="2 lists of its files"):
        unpacked(wheel)


def test_a_packing_that_no_wheel_uses_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("toyengine/m.py", "M = 1\n")
    with pytest.raises(DamagedWheel, match="packed in no usual way"):
        unpacked(wheel)


def test_an_encrypted_file_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    content = bytearray(wheel.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the first flag of a member in the directory
    wheel.write_bytes(content)
    with pytest.raises(DamagedWheel, match="encrypted"):
        unpacked(wheel)


def test_a_huge_record_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzgraph.releases.wheel._LONGEST", 200)
    with pytest.raises(DamagedWheel, match="a huge one"):
        unpacked(make_wheel(tmp_path))


def test_a_wheel_beyond_all_sizes_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzgraph.releases.wheel._MOST_BYTES", 100)
    with pytest.raises(UsageError, match="more than 100"):
        unpacked(make_wheel(tmp_path))
    assert not (tmp_path / "unpacked").exists()
