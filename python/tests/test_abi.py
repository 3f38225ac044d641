"""The structures in _abi.py are those of the header: sizes, offsets and enumerations, by a C compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from deltarelay import _abi, _library

HEADER = Path(__file__).parents[2] / "include"
STRUCTURES = {
    "dr_layout": _abi.Layout,
    "dr_state": _abi.State,
    "dr_problem": _abi.Problem,
    "dr_device": _abi.Device,
    "dr_options": _abi.Options,
    "dr_plan_summary": _abi.Summary,
    "dr_chunks": _abi.Chunks,
    "dr_intermediates": _abi.Intermediates,
    "dr_tensors": _abi.Tensors,
}
NUMBERS = {
    "DR_VERSION": _abi.CONTRACT,
    "DR_KDA": _abi.RULES["kda"],
    "DR_GDN": _abi.RULES["gdn"],
    "DR_FP32": _abi.DTYPES["fp32"],
    "DR_BF16": _abi.DTYPES["bf16"],
    "DR_FP16": _abi.DTYPES["fp16"],
    "DR_INT32": _abi.DTYPES["int32"],
    "DR_INT64": _abi.DTYPES["int64"],
    "DR_GATE_LOG": _abi.GATES["log"],
    "DR_GATE_LINEAR": _abi.GATES["linear"],
    "DR_GATE_RAW_SOFTPLUS": _abi.GATES["softplus"],
    "DR_GATE_RAW_BOUNDED": _abi.GATES["bounded"],
    "DR_BETA_VALUE": _abi.BETAS["value"],
    "DR_BETA_LOGIT": _abi.BETAS["logit"],
    "DR_BETA_TWICE_LOGIT": _abi.BETAS["twice_logit"],
    "DR_STATE_VALUE_MAJOR": _abi.LAYOUTS["value_major"],
    "DR_STATE_KEY_MAJOR": _abi.LAYOUTS["key_major"],
    "DR_STATE_ROWS": _abi.STATE_ROWS,
    "DR_STATE_SLOTS": _abi.STATE_SLOTS,
    "DR_CHECKPOINTS_EVERY": _abi.CHECKPOINTS_EVERY,
    "DR_CHECKPOINTS_LIST": _abi.CHECKPOINTS_LIST,
    "DR_CHECKPOINTS_CHUNKS": _abi.CHECKPOINTS_CHUNKS,
    "DR_SEGMENTS_AUTO": _abi.SEGMENTS_AUTO,
    "DR_SEGMENTS_OFF": _abi.SEGMENTS_OFF,
    "DR_SEGMENTS_COUNT": _abi.SEGMENTS_COUNT,
    "DR_SEGMENTS_LENGTH": _abi.SEGMENTS_LENGTH,
    "DR_CARRY_EXACT": _abi.CARRIES["exact"],
    "DR_CARRY_TRUNCATED": _abi.CARRIES["truncated"],
    "DR_MATH_DEFAULT": _abi.MATHS["default"],
    "DR_MATH_TF32": _abi.MATHS["tf32"],
    "DR_DESCRIBE_TEXT": _abi.DESCRIBE["text"],
    "DR_DESCRIBE_JSON": _abi.DESCRIBE["json"],
    "DR_DESCRIBE_SIGNATURE": _abi.DESCRIBE["signature"],
    "DR_DEVICE_CPU": _abi.DEVICE_CPU,
    "DR_DEVICE_CUDA": _abi.DEVICE_CUDA,
    **{f"DR_{name.upper()}": number for name, number in _abi.OPERATIONS.items()},
    **{f"DR_{name.upper()}": 1 << index for index, name in enumerate(_abi.INTERMEDIATES)},
}


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What a C compiler makes of the header."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not HEADER.is_dir():
        pytest.skip("needs a C compiler and the sources")
    lines = [f'P("sizeof {name}", sizeof({name}));' for name in STRUCTURES]
    for name, structure in STRUCTURES.items():
        lines += [f'P("{name}.{field}", offsetof({name}, {field}));' for field, *_ in structure._fields_]
    lines += [f'P("{name}", {name});' for name in NUMBERS]
    folder = tmp_path_factory.mktemp("abi")
    source = folder / "abi.c"
    source.write_text(
        '#include <stdio.h>\n#include "deltarelay/deltarelay.h"\n'
        '#define P(n, v) printf("%s=%lld\\n", n, (long long)(v))\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    subprocess.run([compiler, "-I", str(HEADER), str(source), "-o", str(folder / "abi")], check=True)
    printed = subprocess.run([str(folder / "abi")], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split("=") for line in printed.splitlines())}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure(name: str, header: dict[str, int]) -> None:
    structure = STRUCTURES[name]
    assert ctypes.sizeof(structure) == header[f"sizeof {name}"]
    for field, *_ in structure._fields_:
        assert getattr(structure, field).offset == header[f"{name}.{field}"], field


def test_numbers(header: dict[str, int]) -> None:
    assert {name: header[name] for name in NUMBERS} == NUMBERS


@pytest.mark.parametrize(
    ("structure", "names"), [(_abi.Tensors, _abi.POINTERS), (_abi.Intermediates, _abi.INTERMEDIATES)]
)
def test_pointers_follow_each_other(structure: type, names: tuple[str, ...]) -> None:
    offsets = [getattr(structure, name).offset for name in names]
    assert offsets == list(range(offsets[0], offsets[0] + 8 * len(offsets), 8))


def test_library_is_of_this_version() -> None:
    assert _library.library().dr_version() // 100 == _abi.CONTRACT // 100
