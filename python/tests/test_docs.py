"""The documents about Python: their programs run, and what they say of functions is what the functions have."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, Session, blocks_of, run

import deltarelay

DOCUMENTS = ("docs/python.md", "docs/python-stages.md", "docs/coming-from.md")
PARAMETERS = list(inspect.signature(deltarelay.forward).parameters)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_programs(document: str) -> None:
    session = Session(document)
    session.run_through(max(index for index, block in enumerate(session.blocks) if not block.requires))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_programs_that_need_more(document: str) -> None:
    session = Session(document)
    for index, block in enumerate(session.blocks):
        if block.requires:
            session.run_through(index)


def test_first_screen_of_the_readme() -> None:
    (block,) = blocks_of("README.md")
    lines = [line for line in block.code.splitlines() if line.strip()]
    assert len(lines) <= 12
    assert block.line < 20  # the first screen
    namespace: dict[str, object] = {}
    code = block.code.replace("print(", "shown = str(")
    run(block._replace(code=code, output=None), namespace)
    assert re.fullmatch(r"<Plan cpu/\S+ on cpu: \d+ segments?, [\d.]+ us by the model>", str(namespace["shown"]))


def test_reference_is_current() -> None:
    script = ROOT / "scripts" / "python_reference.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    heads = re.findall(r"^#### deltarelay\.(\S+)$", text, re.MULTILINE)
    package = ROOT / "python/deltarelay"
    modules = {name for name in deltarelay.__all__ if (package / name).is_dir() or (package / f"{name}.py").is_file()}
    to_come = set() if "fla" in modules else {"fla", "chunk_kda", "chunk_gdn", "chunk_gated_delta_rule"}
    assert set(deltarelay.__all__) - modules - to_come - {"__version__"} <= set(heads)
    for module in modules:
        assert {f"{module}.{name}" for name in __import__(f"deltarelay.{module}", fromlist=["x"]).__all__} & set(heads)


def documented_arguments(function: object) -> list[str]:
    arguments = inspect.getdoc(function).partition("Args:")[2].partition("Returns:")[0]
    entries = re.findall(r"^    ([a-z_0-9, ]+):", arguments, re.MULTILINE)
    return [name.strip() for entry in entries for name in entry.split(",")]


@pytest.mark.parametrize(
    "function", [deltarelay.forward, deltarelay.plan, deltarelay.explain], ids=lambda f: f.__name__
)
def test_docstrings_name_every_parameter_in_order(function: object) -> None:
    assert documented_arguments(function) == list(inspect.signature(function).parameters)


def test_environment_variables() -> None:
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    for source in (ROOT / "python/deltarelay").rglob("*.py"):
        for name in re.findall(
            r"(?:environ|switch\(|SWITCH =)[^\n]*?[\"'](DELTARELAY_\w+)", source.read_text(encoding="utf-8")
        ):
            assert f"| `{name}` |" in text, f"{source.name} reads {name}"


def section(title: str) -> str:
    text = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("title", ["FLA", "FlashInfer", "FlashKDA"])
def test_our_side_of_the_tables_exists(title: str) -> None:
    """Names in the right column are parameters, or keywords with values that are taken."""
    rows = [line.split(" | ") for line in section(title).splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) > 10
    others = {"forward", "plan", "h", "Outputs", "deltarelay"}
    for row in rows:
        for quoted in re.findall(r"`([^`]+)`", row[-1]):
            name = re.match(r"[a-z_0-9]*", quoted)
            assert name is not None
            if name[0] and name[0] not in others:
                assert name[0] in PARAMETERS, f"{title}: {quoted}"


def fla_parameters() -> list[str]:
    """Of both functions, as FLA has them, without importing it."""
    found: list[str] = []
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("fla is not here")
    for path, function in (("kda", "chunk_kda"), ("gated_delta_rule", "chunk_gated_delta_rule")):
        source = Path(spec.submodule_search_locations[0], "ops", path, "chunk.py").read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                found += [argument.arg for argument in node.args.args + node.args.kwonlyargs]
    assert found
    return found


def test_the_table_has_every_parameter_of_fla() -> None:
    text = section("FLA")
    assert [name for name in dict.fromkeys(fla_parameters()) if not re.search(rf"\b{name}\b", text)] == []
