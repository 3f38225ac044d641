"""What the package finds around it: the library it loads, modules that are missing, torch before or after it, and the
compiler when it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import has

import deltarelay

ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def refused(path: Path) -> str:
    done = run("import deltarelay", DELTARELAY_LIBRARY=str(path))
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    start = "ImportError: DELTARELAY_LIBRARY: expected the shared library of DeltaRelay 0.2 (libdeltarelay.so.0.2), "
    assert message.startswith(start), message
    return message.removeprefix(start)


def test_a_foreign_library(tmp_path: Path) -> None:
    extension = Path(deltarelay.__file__).parent / "_core.abi3.so"
    if extension.exists():
        assert "another library (it has no dr_version)" in refused(extension)
    text = tmp_path / "library.so"
    text.write_text("no library")
    assert f"found {text}, which cannot be loaded: " in refused(text)
    assert f"found {tmp_path}, which cannot be loaded: " in refused(tmp_path)


def test_no_library(tmp_path: Path) -> None:
    done = run("import deltarelay", DELTARELAY_LIBRARY=str(tmp_path / "none.so"))
    assert "found none; looked for" in done.stderr and "none.so (DELTARELAY_LIBRARY)" in done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_library_of_another_version(tmp_path: Path) -> None:
    source, library = tmp_path / "old.c", tmp_path / "libold.so"
    for version, words in ((100, "found version 0.1.0"), (10300, "found version 1.3.0"), (200, "which has no dr_")):
        source.write_text(f"int dr_version(void) {{ return {version}; }}")
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        assert words in refused(library)


def test_bf16_results_without_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    q = numpy.zeros((7, 1, 16), numpy.float32)
    rows = (q, q, q, q[..., 0], q[..., 0])
    wanted: list[dict[str, Any]] = [{"o_dtype": "bf16"}, {"final": True, "final_dtype": "bf16"}]
    for options in wanted:
        with pytest.raises(
            deltarelay.Unsupported, match=r"bf16 .*expected the package ml_dtypes \(pip install .*found none"
        ):
            deltarelay.forward("gdn", *rows, **options)
    with pytest.raises(deltarelay.Unsupported, match="expected the package ml_dtypes"):
        deltarelay.stages.chunk_local("gdn", q=q, k=q, v=q, g=rows[3], beta=rows[4], dtype="bf16")


@pytest.mark.skipif(not has("torch"), reason="torch is not installed")
def test_operators_are_there_where_torch_is() -> None:
    done = run("import torch, deltarelay; print(torch.ops.deltarelay.forward_o.default)")
    assert done.stdout.strip() == "deltarelay.forward_o.default", done.stderr
    done = run("import deltarelay, sys; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.strip() == "False False", done.stderr
    done = run("import deltarelay, torch, deltarelay.torch_ops; print(torch.ops.deltarelay.forward_o.default)")
    assert done.stdout.strip() == "deltarelay.forward_o.default", done.stderr


@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("ninja") is None, reason="there is no CMake")
@pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists(), reason="this is no source tree")
def test_no_compiler(tmp_path: Path) -> None:
    """What `pip install .` prints then."""
    (tmp_path / "bin").mkdir()
    for tool in ("cmake", "ninja"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    environment["PATH"] = str(tmp_path / "bin")
    done = subprocess.run(
        [str(shutil.which("cmake")), "-S", str(ROOT), "-B", str(tmp_path / "build"), "-G", "Ninja"],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    words = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "expected a C and a C++ compiler (GCC 12 or Clang 14, or later), found none" in words
    assert "apt-get install g++" in words
