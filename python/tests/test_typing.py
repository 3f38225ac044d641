"""What mypy finds in calls: every mistake of typed_calls.py, and nothing in the right calls beside them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import has

import deltarelay

CALLS = Path(__file__).parent / "typed_calls.py"
# Their sources are large, and what they say of themselves is not asked.
CONFIGURATION = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,fla.*,transformers.*,triton.*,vllm.*,sglang.*,matplotlib.*,ml_dtypes.*]
follow_imports = skip
follow_untyped_imports = false
ignore_missing_imports = true
"""


@pytest.mark.skipif(not has("mypy"), reason="mypy is not installed")
def test_mistakes_are_found(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            "mypy.ini",
            "--no-error-summary",
            "--hide-error-context",
            str(CALLS),
        ],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(deltarelay.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = set(re.findall(r"typed_calls\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout))
    lines = enumerate(CALLS.read_text(encoding="utf-8").splitlines(), 1)
    marks = ((number, re.search(r"\)  # ([\w-]+)$", line)) for number, line in lines)
    expected = {(str(number), mark.group(1)) for number, mark in marks if mark}
    assert len(expected) > 15
    assert found == expected


def test_the_marker_is_installed() -> None:
    assert (Path(deltarelay.__file__).parent / "py.typed").exists()
