"""Loading: the accepted formats and packings, and one line for everything else."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import lzma
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import HloParseError, InputError
from hloinspect.hlo import load_module, load_module_bytes
from hloinspect.hlo.load import EXPECTED, MAX_BYTES_VARIABLE, SNIFF_BYTES
from hloinspect.hlo.schema import hlo_pb2 as schema
from tests.support.hlo_samples import DATA, ROOT, text_of, zoo_proto, zoo_text

TEXT = zoo_text().encode()
MODULES = {"text": TEXT, "proto": zoo_proto()}
PACKERS = {"plain": bytes, "gzip": gzip.compress, "xz": lzma.compress}
HAS_ZSTD = any(importlib.util.find_spec(name) for name in ("compression", "zstandard"))


class Endless(io.RawIOBase):
    """A stream that never ends and counts the bytes taken from it."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = (self.pattern * (len(buffer) // len(self.pattern) + 1))[: len(buffer)]
        buffer[:] = part
        self.taken += len(part)
        return len(part)


def write(folder: Path, data: bytes, name: str = "input") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def check_line(error: InputError) -> str:
    """Assert that a refusal is one line that begins with the name, and return it."""
    message = str(error)
    assert message.startswith("NAME: ")
    assert "\n" not in message
    return message


def refusal(data: bytes, **options: int) -> str:
    """Return the one line with which ``data`` is refused."""
    with pytest.raises(InputError) as error:
        load_module_bytes(data, "NAME", **options)
    return check_line(error.value)


# ---- what is accepted


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("kind", MODULES)
def test_the_content_decides_not_the_name(kind: str, packing: str, tmp_path: Path) -> None:
    path = write(tmp_path, PACKERS[packing](MODULES[kind]), "misleading.png")
    module = load_module(path)
    assert (module.kind, module.name, module.size_bytes) == (kind, "zoo", len(MODULES[kind]))
    assert load_module(str(path)).instruction_count == module.instruction_count


def test_a_hlo_proto_is_recognised_around_the_module() -> None:
    assert (
        load_module_bytes(
            schema.HloProto(hlo_module=schema.HloModuleProto.FromString(zoo_proto())).SerializeToString()
        ).name
        == "zoo"
    )


def test_gzip_files_of_several_members_are_read_whole() -> None:
    half = len(TEXT) // 2
    assert load_module_bytes(gzip.compress(TEXT[:half]) + gzip.compress(TEXT[half:])).name == "zoo"


def test_a_byte_order_mark_and_blank_lines_in_front_do_no_harm() -> None:
    assert load_module_bytes(b"\xef\xbb\xbf" + TEXT).name == "zoo"
    assert load_module_bytes(b"\n\n" + TEXT).name == "zoo"


@pytest.mark.parametrize("kind", MODULES)
def test_a_dash_reads_standard_input_even_in_pieces(kind: str) -> None:
    code = "from hloinspect.hlo import load_module; m = load_module('-'); print(m.kind, m.name, m.instruction_count)"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdin is not None
    for start in range(0, len(MODULES[kind]), 3000):
        child.stdin.write(MODULES[kind][start : start + 3000])
        child.stdin.flush()
    out, _ = child.communicate()
    assert out.split()[:2] == [kind.encode(), b"zoo"]


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals")
def test_a_terminal_as_standard_input_is_refused_at_once() -> None:
    code = "from hloinspect.hlo import load_module; load_module('-')"
    master, terminal = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=terminal,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(master)
        os.close(terminal)
    assert "standard input: expected a module, found a terminal" in done.stderr


@pytest.mark.skipif(not HAS_ZSTD, reason="no zstd module in this Python")
def test_zstd_is_read_where_python_can(tmp_path: Path) -> None:
    try:
        from compression import zstd

        packed = zstd.compress(TEXT)
    except ImportError:
        import zstandard

        packed = zstandard.ZstdCompressor().compress(TEXT)
    assert load_module(write(tmp_path, packed)).name == "zoo"
    assert "damaged" in refusal(packed[:4] + b"\xff" * 40)
    refusal(packed[: len(packed) // 2])  # zstandard ends such a file without an error: half a module is left


@pytest.mark.skipif(HAS_ZSTD, reason="this Python reads zstd")
def test_zstd_is_refused_with_the_remedy_where_python_cannot() -> None:
    assert "pip install zstandard" in refusal(b"\x28\xb5\x2f\xfd" + bytes(100))


def test_text_is_read_without_protobuf_and_neither_numpy_nor_jax_is_imported() -> None:
    code = (
        "import sys; from hloinspect.hlo import load_module; load_module(sys.argv[1]);"
        "print([name for name in ('google.protobuf', 'numpy', 'jax') if name in sys.modules])"
    )
    for name, expected in (("zoo.hlo.txt", "[]"), ("zoo.hlo.pb", "['google.protobuf']")):
        done = subprocess.run(
            [sys.executable, "-c", code, DATA / name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


# ---- what is refused, and with which words


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(DATA / "zoo.hlo.txt", "zoo.hlo.txt")
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a", "b")
    return out.getvalue()


# XSpace{planes{id: 1, name: "/device:GPU:0", lines{...}}} as a profiler writes it.
XPLANE = b"\x0a\x1b\x08\x01\x12\x0d/device:GPU:0\x1a\x08\x08\x01\x12\x04line"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "nothing: it is empty"),
        (b" \n\n ", "only white space"),
        (bytes(100_000), "zeros"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a PNG image"),
        (pickle.dumps({"a": [1, 2]}), "a Python pickle"),
        (_tar(), "a tar archive"),
        (_zip(), "a zip archive"),
        (XPLANE, "a profile (XSpace"),
        (json.dumps({"traceEvents": [1]}).encode(), "JSON"),
        (b"[1, 2]", "JSON"),
        (b"Lorem ipsum dolor sit amet\nmore\n" * 9, "text that begins with 'Lorem ipsum dolor sit amet'"),
        (b"[build-system]\nrequires = []\n", "text that begins with '[build-system]'"),
        ("HloModule m\n".encode("utf-16"), "UTF-16"),
        (
            b"module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n}\n",
            "this is StableHLO: give the optimized module",
        ),
        (b'#loc = loc("x")\nmodule @m {\n}', "this is StableHLO"),
        (b'"builtin.module"() ({\n', "this is StableHLO"),
        (b"// comment\nmodule {\n", "this is StableHLO"),
        (b"ML\xefR\x06StableHLO_v1.0\x00" + bytes(20), "this is StableHLO"),
        (b"{ lambda ; a:f32[]. let b:f32[] = neg a in (b,) }", "a jaxpr"),
        (b'name: "jit_f"\nentry_computation_name: "main"\n', "a proto in text format"),
        (b"ENTRY %main (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n", "without its first line"),
        (gzip.compress(gzip.compress(TEXT, mtime=0), mtime=0), "a gzip file inside a compressed file"),
        (bytes(range(128, 256)) * 40, "binary data"),
        (TEXT[:100].replace(b"HloModule", b"HloMobule"), "text that begins with 'HloMobule zoo"),
    ],
)
def test_what_is_no_module_is_named_and_what_was_expected_too(data: bytes, found: str) -> None:
    message = refusal(data)
    assert f"expected {EXPECTED}, found " in message
    assert found in message


@pytest.mark.parametrize("packing", PACKERS)
def test_the_same_words_come_from_inside_a_compressed_file(packing: str) -> None:
    assert "this is StableHLO" in refusal(PACKERS[packing](b"module @m {\n}\n" * 99))


def test_a_module_without_a_schedule_is_named_so() -> None:
    text = text_of("ROOT %p = f32[] parameter(0)", header="HloModule before_optimizations").encode()
    proto = schema.HloModuleProto.FromString(zoo_proto())
    proto.ClearField("schedule")
    for data in (text, proto.SerializeToString()):
        message = refusal(data)
        assert "not optimized" in message
        assert "after_optimizations" in message


def test_faults_of_a_module_name_the_file_and_the_place() -> None:
    with pytest.raises(HloParseError, match=r"^NAME: line 3, column 1: expected a computation") as error:
        load_module_bytes(b"HloModule m, is_scheduled=true\n\n{\n}\n", "NAME")
    assert (error.value.line, error.value.column) == (3, 1)
    assert "the text is truncated" in refusal(TEXT[: len(TEXT) // 2])
    assert "decode as neither" in refusal(zoo_proto()[:-200])


@pytest.mark.parametrize("packing", ["gzip", "xz"])
def test_compressed_data_that_are_cut_off_or_damaged_say_so(packing: str) -> None:
    packed = PACKERS[packing](TEXT)
    assert "cut off" in refusal(packed[: len(packed) // 2])
    at = len(packed) - 8 if packing == "gzip" else len(packed) // 2  # the checksum of gzip, the content of xz
    assert "damaged" in refusal(packed[:at] + bytes(byte ^ 255 for byte in packed[at : at + 4]) + packed[at + 4 :])


def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    cases = {
        tmp_path / "absent.hlo": "no such file",
        tmp_path: "found a directory",
        tmp_path / ("n" * 5000): "cannot be read",
        write(tmp_path, b"x") / "below-a-file": "cannot be read",
        Path("zero\0byte"): "cannot be read",
    }
    for path, words in cases.items():
        with pytest.raises(InputError, match=words) as error:
            load_module(path)
        assert str(error.value).startswith(f"{path}: ")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        load_module(path)


# ---- the limit


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("kind", MODULES)
def test_the_limit_counts_unpacked_bytes_and_says_how_to_raise_it(kind: str, packing: str) -> None:
    data = PACKERS[packing](MODULES[kind])
    size = len(MODULES[kind])
    assert load_module_bytes(data, max_bytes=size).size_bytes == size
    message = refusal(data, max_bytes=size - 1)
    assert f"{size - 1:,} bytes" in message
    assert MAX_BYTES_VARIABLE in message


def test_the_environment_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "100")
    assert "at most 100 bytes" in refusal(TEXT)
    assert load_module_bytes(TEXT, max_bytes=1 << 20).name == "zoo"
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1GB")
    with pytest.raises(InputError, match=f"{MAX_BYTES_VARIABLE}: expected a number of bytes, found '1GB'"):
        load_module_bytes(TEXT)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
def test_a_bomb_goes_off_at_the_limit(packing: str) -> None:
    bomb = PACKERS[packing](b"HloModule bomb, is_scheduled=true\n" + b" " * (64 << 20))
    assert len(bomb) < 1 << 17
    assert "at most 1,000,000 bytes" in refusal(bomb, max_bytes=1_000_000)


@pytest.mark.parametrize(
    "pattern", [b"\0", b"garbage\n", bytes(range(256)), b"\x0a\x03abc\xff", b"\x89PNG\r\n\x1a\n", b"\x80\x04\x95"]
)
def test_endless_garbage_is_refused_from_its_first_bytes(pattern: bytes) -> None:
    from hloinspect.hlo.load import _read

    stream = io.BufferedReader(Endless(pattern))
    with pytest.raises(InputError):
        _read(stream, "NAME", 1 << 40)  # type: ignore[arg-type]
    assert stream.raw.taken <= SNIFF_BYTES + (2 << 20)  # type: ignore[attr-defined]


def test_an_endless_module_ends_at_the_limit() -> None:
    from hloinspect.hlo.load import _read

    stream = io.BufferedReader(Endless(b"HloModule m, is_scheduled=true\n"))
    with pytest.raises(InputError, match="at most 5,000,000 bytes"):
        _read(stream, "NAME", 5_000_000)  # type: ignore[arg-type]
    assert stream.raw.taken < 10_000_000  # type: ignore[attr-defined]


# ---- anything at all


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_in_one_line_or_are_a_module(data: bytes) -> None:
    try:
        load_module_bytes(data, "NAME")
    except InputError as error:
        check_line(error)
