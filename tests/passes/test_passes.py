"""The ledger of compiler passes: what changed, by which pass, and where a transfer came from."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hloinspect.cli import main
from hloinspect.errors import HloInspectError
from hloinspect.passes.census import census_of, signature
from hloinspect.passes.dump import find_passes
from hloinspect.passes.follow import follow
from hloinspect.passes.ledger import Ledger, change_sentences, ledger_of
from tests.support.json_schemas import faults
from tests.support.passes_samples import DROPPED, GOOD, KEY, annotated, copied, marked, module, started, without, write
from tests.support.places import ROOT
from tests.support.thorough import examples


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["passes", *map(str, arguments)])


def answer(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert faults(found, "passes") == []
    return found


def refusal(*arguments: str | Path) -> str:
    """Return the one line that a bad input gets."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith("hloinspect: error: ")
    assert all(line.startswith("try: ") for line in rest)
    return first


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good", GOOD)


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    return write(tmp_path / "dropped", DROPPED)


def ledger(folder: Path) -> Ledger:
    return ledger_of(find_passes(folder))


# ---- the ledger


def test_every_pass_that_changes_something_is_named_in_order_with_what_it_did(good: Path) -> None:
    assert [(change.text.name, change_sentences(change)) for change in ledger(good).shown] == [
        ("convert-placements", ["annotations became XLA's own marks"]),
        ("host-offloader", ["placements became transfers"]),
        ("asyncifier", ["made asynchronous"]),
    ]


def test_counts_and_bytes_stand_on_both_sides_of_a_pass(good: Path) -> None:
    change = answer(good)["changes"][2]
    assert (change["number"], change["pipeline"], change["pass_name"]) == (5, "post", "asyncifier")
    one, none = {"count": 1, "bytes": 4096}, {"count": 0, "bytes": 0}
    assert change["counts"] == {
        "copy_d2h": {"before": one, "after": none},
        "copy_h2d": {"before": one, "after": none},
        "async_d2h": {"before": none, "after": one},
        "async_h2d": {"before": none, "after": one},
    }


def test_texts_in_which_nothing_changed_are_counted_and_only_looked_at_quickly(good: Path) -> None:
    found = ledger(good)
    assert found.quiet == len(found.dump.texts) - 1 - 3
    assert found.read < len(found.dump.texts)
    assert f"Nothing of interest changed in {found.quiet} other texts." in run(good).stdout


def test_the_pass_that_deletes_an_offload_stands_on_the_first_screen(dropped: Path) -> None:
    lines = run(dropped).stdout.splitlines()
    assert lines[2:5] == [
        "requested    1 to the host (4 KiB), 1 back (4 KiB)",
        "in the end   nothing: no transfer, nothing in host memory",
        "lost         1 of 1 to the host and 1 of 1 back, by algsimp (text 5)",
    ]
    assert answer(dropped)["changes"][-1]["dropped"] == {"d2h": 1, "h2d": 1}


def test_no_line_of_the_ledger_is_wider_than_a_hundred_columns(good: Path, dropped: Path) -> None:
    for folder in (good, dropped):
        assert max(map(len, run(folder).stdout.replace(str(folder), "dump").splitlines())) <= 100


def test_what_a_pipeline_starts_with_is_not_charged_to_its_passes(tmp_path: Path) -> None:
    texts = {"0000.a.after_x.before_y": copied(), "0001.b.after_pipeline-start.before_z": started()}
    (change,) = ledger(write(tmp_path / "d", texts, ends=False)).shown
    assert change.text.label == "before the pipeline b"


def test_a_placement_of_what_is_there_already_is_not_called_dropped(tmp_path: Path) -> None:
    twice = module(
        '%mark = f32[1024]{0} custom-call(%act), custom_call_target="MoveToHost"',
        '%mark.1 = f32[1024]{0} custom-call(%mark), custom_call_target="MoveToHost"',
        '%back = f32[1024]{0} custom-call(%mark.1), custom_call_target="MoveToDevice"',
    )
    texts = {"0000.a.after_x.before_y": twice, "0001.a.after_host-offloader.before_z": copied()}
    (change,) = ledger(write(tmp_path / "d", texts)).shown
    assert change.dropped == {}
    assert change_sentences(change) == [
        "1 of 2 placements to the host made no transfer of their own",
        "placements became transfers",
    ]


def test_compute_that_moves_to_the_host_is_said(tmp_path: Path) -> None:
    host = module(
        "%copy.1 = f32[1024]{0:S(5)} copy(%act)",
        '%twice = f32[1024]{0:S(5)} add(%copy.1, %copy.1), frontend_attributes={_xla_compute_type="host"}',
        "%back = f32[1024]{0} copy(%twice)",
    )
    execute = module(
        '%back = f32[1024]{0} custom-call(%act), custom_call_target="HostExecute", called_computations={%host}',
        more="%host (p: f32[1024]) -> f32[1024] {\n  ROOT %p = f32[1024]{0} parameter(0)\n}\n",
    )
    texts = {
        "0000.a.after_w.before_x": marked(),
        "0001.a.after_host-offloader.before_y": host,
        "0002.a.after_host-compute.before_z": execute,
    }
    first, second = ledger(write(tmp_path / "d", texts)).shown
    assert "became compute in host memory" in change_sentences(first)
    assert "became host compute" in change_sentences(second)
    assert second.dropped == {}


def test_a_kernel_on_host_memory_is_distinguished_from_a_copy(tmp_path: Path) -> None:
    kernel = module("%copy.1 = f32[1024]{0:S(5)} copy(%act)", "%back = f32[1024]{0} negate(%copy.1)")
    texts = {"0000.a.after_x.before_y": copied(), "0001.a.after_fuse.before_z": kernel}
    (change,) = ledger(write(tmp_path / "d", texts)).shown
    assert change.kinds == ("copy_h2d", "kernel_h2d")
    assert change_sentences(change) == ["kernels work on host memory"]


def test_texts_from_inside_a_pass_are_read_only_on_request(tmp_path: Path) -> None:
    texts = {
        "0000.a.after_x.before_copy-insertion": copied(),
        "0001.copy-insertion.after_adding_copies": started(),
        "0002.a.after_copy-insertion.before_z": copied(),
    }
    folder = write(tmp_path / "d", texts)
    assert answer(folder)["changes"] == []
    assert answer(folder)["inside"] == 1
    steps = answer(folder, "--steps")["changes"]
    assert [change["pass_name"] for change in steps] == ["adding_copies", "copy-insertion"]


def test_a_directory_needs_neither_jax_nor_numpy_nor_protobuf(good: Path) -> None:
    code = (
        "import sys; from hloinspect.cli import main\n"
        f"try: main(['passes', {str(good)!r}])\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "print([name for name in ('jax', 'numpy', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ---- the fast search


@pytest.mark.parametrize("text", [annotated(), marked(), copied(), started()])
def test_the_quick_look_sees_each_form(text: str) -> None:
    assert signature(text.encode()) != signature(without().encode())
    assert signature(without().encode()) == b""


def test_the_quick_look_ignores_metadata_and_what_has_nothing_to_do_with_the_host() -> None:
    other = marked().replace("tanh(%x)", "sine(%x)").replace("=41 ", "=44 ")
    assert signature(other.encode()) == signature(marked().encode())


OPS = ("copy", "negate", "add", "bitcast", "start", "tuple", "MoveToHost", "MoveToDevice")
SPACES = ("{0}", "{0:S(5)}")
SPECS = st.tuples(st.sampled_from(OPS), st.integers(0, 9), st.sampled_from(SPACES), st.sampled_from(SPACES))


def program(specs: Sequence[tuple[str, int, str, str]], compact: bool) -> str:
    """Return instructions in a row, each of some earlier value, in host memory or not; parts of tuples in either
    spelling."""
    lines = []
    values = ["act"]
    for number, (op, operand, layout, other) in enumerate(specs):
        one, name, shape = values[operand % len(values)], f"v{number}", f"f32[1024]{layout}"
        if op == "start":
            lines += [
                f"%{name}.s = ({shape}, f32[1024]{other}, u32[]) copy-start(%{one})",
                f"%{name} = {shape} copy-done(%{name}.s)",
            ]
        elif op == "tuple":
            lines.append(f"%{name}.t = ({shape}, f32[1024]{{0}}) tuple(%{one}, %act)")
            if not compact:
                lines.append(f"%{name} = {shape} get-tuple-element(%{name}.t), index=0")
            else:
                name = f"{name}.t#0"
        elif op.startswith("Move"):
            lines.append(f'%{name} = f32[1024]{{0}} custom-call(%{one}), custom_call_target="{op}"')
        else:
            lines.append(f"%{name} = {shape} {op}(%{one}{', %act' if op == 'add' else ''})")
        values.append(name)
    return module(*lines, f"%back = f32[1024]{{0}} negate(%{values[-1]})")


@example([("tuple", 0, *SPACES[::-1]), ("copy", 1, *SPACES)], 1, ("negate", 1, *SPACES), True)
@example([("tuple", 0, *SPACES[::-1]), ("copy", 1, *SPACES)], 1, ("negate", 1, *SPACES), False)
@given(st.lists(SPECS, min_size=1, max_size=6), st.integers(0, 5), SPECS, st.booleans())
@settings(max_examples=examples(300, 20_000))
def test_a_pass_that_changes_one_instruction_never_escapes_the_quick_look(
    specs: list[tuple[str, int, str, str]], place: int, new: tuple[str, int, str, str], compact: bool
) -> None:
    changed = list(specs)
    changed[place % len(specs)] = new
    one, other = (program(each, compact).encode() for each in (specs, changed))
    if census_of(one).counts != census_of(other).counts:
        assert signature(one) != signature(other)


# ---- one pass


def test_a_pass_is_shown_as_a_diff_of_the_instructions_it_affected(good: Path) -> None:
    assert run(good, "--pass", "host-offloader").stdout.splitlines() == [
        f"--- {KEY}.0003.post.after_pipeline-start.before_host-offloader.txt",
        f"+++ {KEY}.0004.post.after_host-offloader.before_cse.txt",
        "@@ main @@",
        '- %mark = f32[1024] custom-call(%act), custom_call_target="MoveToHost"',
        '- %back = f32[1024] custom-call(%mark), custom_call_target="MoveToDevice"',
        "+ %copy.1 = f32[1024] S(5) copy(%act)",
        "+ %back = f32[1024] copy(%copy.1)",
        "  %out = f32[1024] add(%back, %x)",
    ]


def test_names_that_only_changed_make_no_difference(good: Path) -> None:
    assert "different, but for names" in run(good, "--pass", "rename").stdout


def test_metadata_is_shown_only_on_request(good: Path) -> None:
    assert "op_name" not in run(good, "--pass", "pre/convert-placements").stdout
    assert 'op_name="jit(f)/device_put"' in run(good, "--pass", "pre/convert-placements", "-v").stdout


def test_a_pass_that_changes_nothing_says_so_and_its_number_shows_it_all_the_same(good: Path) -> None:
    assert run(good, "--pass", "dce").stdout == "dce: no text of it changes anything that has to do with the host\n"
    assert answer(good, "--pass", "2")["differences"] == [
        {
            "before": {"number": 1, "pipeline": "pre", "pass_name": "convert-placements", "file": file_of(1)},
            "after": {"number": 2, "pipeline": "pre", "pass_name": "dce", "file": file_of(2)},
            "parts": [],
            "left_out": 0,
        }
    ]


def file_of(place: int) -> str:
    return f"{KEY}.{list(GOOD)[place]}.txt"


def test_a_pass_that_is_not_there_gets_the_nearest_name(good: Path) -> None:
    assert "no text of a pass 'host-ofloader': did you mean host-offloader?" in refusal(good, "--pass", "host-ofloader")


# ---- one transfer


def test_a_transfer_is_followed_back_to_its_annotation(good: Path) -> None:
    trail = answer(good, "--follow", "copy-start.7")["trail"]
    assert [(hop["pass_name"], hop["item"]["kind"], hop["item"]["name"]) for hop in trail["hops"]] == [
        ("rename", "async_d2h", "copy-start.7"),
        ("asyncifier", "async_d2h", "copy-start"),
        ("host-offloader", "copy_d2h", "copy.1"),
        ("convert-placements", "mark_d2h", "mark"),
        ("before_optimizations", "annotation_d2h", "put"),
    ]
    assert trail["lost"] == ""
    ending = "It was requested by put, which is there from the beginning (train.py:41)."
    assert run(good, "--follow", "copy-start.7").stdout.splitlines()[-1] == ending


def test_the_way_back_is_followed_too_by_its_number(good: Path) -> None:
    hops = answer(good, "--follow", "2")["trail"]["hops"]
    assert (hops[0]["item"]["name"], hops[-1]["item"]["name"]) == ("copy-start.1", "back")


def test_a_trail_that_is_lost_says_where_and_why(tmp_path: Path) -> None:
    texts = {"0000.a.after_x.before_y": without(), "0001.a.after_remat.before_z": started()}
    folder = write(tmp_path / "d", texts)
    trail = follow(ledger(folder), "copy-start")
    assert trail.end is not None
    assert trail.end.name == "remat"
    assert trail.lost.startswith("nothing there has its name")
    assert "The trail is lost at remat (text 1)" in run(folder, "--follow", "copy-start").stdout


def test_transfers_that_cannot_be_distinguished_are_not_guessed(tmp_path: Path) -> None:
    marks = [f'%m{n} = f32[1024]{{0}} custom-call(%x), custom_call_target="MoveToHost"' for n in range(3)]
    before = module(*marks, "%back = f32[1024]{0} negate(%act)")
    after = module("%c0 = f32[1024]{0:S(5)} copy(%x)", "%back = f32[1024]{0} negate(%act)")
    folder = write(tmp_path / "d", {"0000.a.after_x.before_y": before, "0001.a.after_merge.before_z": after})
    assert follow(ledger(folder), "c0").lost == "3 there are alike, and nothing shows which"


def test_a_copy_that_a_pass_adds_is_not_taken_for_a_transfer_of_the_same_size(tmp_path: Path) -> None:
    more = module(
        "%copy.1 = f32[1024]{0:S(5)} copy(%act)",
        "%copy.2 = f32[1024]{0:S(5)} copy(%copy.1)",
        "%back = f32[1024]{0} copy(%copy.2)",
    )
    folder = write(tmp_path / "d", {"0000.a.after_x.before_y": copied(), "0001.a.after_copies.before_z": more})
    assert "nothing there has its name" in follow(ledger(folder), "copy.2").lost
    assert follow(ledger(folder), "copy.1").lost == ""


def test_a_transfer_that_is_not_there_gets_the_names_that_are(good: Path) -> None:
    assert "there are copy-start.7, copy-start.1" in refusal(good, "--follow", "nope")


# ---- the directory


def test_the_largest_module_with_placements_is_taken_and_another_can_be(good: Path) -> None:
    write(good, {name: without() + "\n" * 9000 for name in list(GOOD)[:2]}, key="module_0001.jit_init")
    assert find_passes(good).key == KEY
    assert find_passes(good).others == ("module_0001.jit_init",)
    assert find_passes(good, "jit_init").key == "module_0001.jit_init"
    assert find_passes(good, "1").key == "module_0001.jit_init"
    assert "no module is named 'jit_g'" in refusal(good, "--module", "jit_g")


def test_a_compilation_that_failed_has_no_last_text_and_is_read_all_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {name: GOOD[name] for name in list(GOOD)[:3]}, ends=False)
    assert [change.text.name for change in ledger(folder).shown] == ["convert-placements"]


def test_numbers_without_a_text_are_said(tmp_path: Path) -> None:
    texts = {name: text for name, text in GOOD.items() if not name.startswith(("0002", "0003"))}
    assert "2 numbers without a text" in " ".join(run(write(tmp_path / "d", texts)).stdout.split())


def test_texts_of_two_runs_are_refused(good: Path) -> None:
    write(good, {"0004.post.after_other.before_cse": copied()}, ends=False)
    assert "two texts" in refusal(good)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text[: len(text) // 2], "stops in the middle"),
        (lambda text: "", "expected HLO text that begins with 'HloModule'"),
        (lambda text: "\x00" * 99, "expected HLO text that begins with 'HloModule'"),
        (lambda text: text.replace("ENTRY ", ""), "no ENTRY computation"),
        (lambda text: text.replace("f32[1024]{0:S(5)} copy(", "f32[10z4]{0:S(5)} copy("), "not a dimension"),
    ],
    ids=["cut off", "empty", "zeros", "no entry", "bad shape"],
)
def test_a_damaged_text_is_one_line_with_its_name(good: Path, spoil: Callable[[str], str], said: str) -> None:
    path = good / f"{KEY}.{list(GOOD)[4]}.txt"
    path.write_text(spoil(path.read_text()))
    message = refusal(good)
    assert said in message
    assert path.name in message


def test_a_directory_without_texts_is_refused_with_the_flags_that_make_them(tmp_path: Path) -> None:
    assert "--xla_dump_hlo_pass_re=.*" in refusal(tmp_path)


def test_what_is_neither_a_directory_nor_a_step_is_refused(good: Path, tmp_path: Path) -> None:
    file = tmp_path / "module.txt"
    file.write_text(copied())
    assert "expected a directory with texts of passes, or a step" in refusal(file)
    assert "give --target" in refusal("train.py:step")
    assert "--target is for a step" in refusal(good, "--target", "h100")
    assert "two questions" in refusal(good, "--pass", "dce", "--follow", "1")
    assert "expected an empty directory" in refusal("train.py:step", "--target", "h100", "--keep", good)


@given(data=st.data(), text=st.sampled_from([annotated(), marked(), copied(), started()]))
@settings(max_examples=examples(200, 20_000))
def test_hostile_text_is_read_or_refused(data: st.DataObject, text: str) -> None:
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(raw) - 1))
        length = data.draw(st.integers(0, 40))
        raw[start : start + length] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"%act", b"S(5)", b"((", b"#0"])
        )
    signature(bytes(raw))
    with contextlib.suppress(HloInspectError):
        census_of(bytes(raw))
