#!/usr/bin/env python3
"""Checks includes, file names, file lengths, line lengths and the place of inline PTX.

An include is resolved to a file and judged by the folder of that file. The folders below are the architecture. A new
folder of sources is an error until it has an entry here.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 600
MAX_COLUMNS = 120
BANNED_WORDS = {"utils", "util", "helpers", "helper", "common", "misc"}
SOURCE_SUFFIXES = {".h", ".hpp", ".c", ".cpp", ".inl", ".cu", ".cuh"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".py", ".sh", ".cmake"}  # with limits on lines and columns
SEARCHED = ("src", "include", "tools", "tests", "bench", "examples", "python")

API = "include/deltarelay"
KERNELS = "src/kernels/*"  # rows, steps, variants, backend: what plans and all kernels share
RELAY = "src/kernels/relay.h"
FORM = "src/kernels/form.h"
CUDA = "src/kernels/cuda"
SM90 = f"{CUDA}/sm90"
DEVICE = [f"{CUDA}/*", f"{CUDA}/ptx", f"{CUDA}/tile", f"{CUDA}/rows"]  # shared by the kernels of all architectures
ROOMS = ("rows", "fused", "records", "carry")
PLAN_ROOMS = ("search", "devices", "describe", "ops")
TOOLS = ["tools/case", "tools/check"]
# folder -> what it may include besides itself: folders, single files, or "folder/*" (files of that folder, none below)
ALLOWED = {
    "include/deltarelay": [],
    "src/problem": [API],
    "src/kernels": [API, "src/problem"],
    "src/kernels/reference": [API, "src/problem", KERNELS],
    "src/kernels/cpu": [API, "src/problem", KERNELS],
    # Device code has layers, each of which includes only those below: ptx <- tile, rows <- code that architectures
    # share <- an architecture. Architectures do not include each other.
    f"{CUDA}/ptx": [],
    f"{CUDA}/tile": [f"{CUDA}/ptx", f"{CUDA}/args.h"],
    f"{CUDA}/rows": [f"{CUDA}/ptx", f"{CUDA}/args.h"],
    CUDA: [API, "src/problem", KERNELS],  # arguments of kernels
    f"{CUDA}/launch": [API, "src/problem", KERNELS, *DEVICE],
    f"{CUDA}/sm80": [API, "src/problem", KERNELS, f"{CUDA}/launch", f"{CUDA}/sm80/stages", *DEVICE],
    f"{CUDA}/sm80/stages": [API, "src/problem", KERNELS, f"{CUDA}/launch", f"{CUDA}/sm80/*", *DEVICE],
    # Hopper: the two ways to walk and the carry do not include each other, nor do the two rules.
    SM90: [API, "src/problem", KERNELS, f"{CUDA}/launch", *(f"{SM90}/{room}" for room in ROOMS), *DEVICE],
    f"{SM90}/rows": [f"{CUDA}/launch/checkpoint.cuh", f"{SM90}/*", *DEVICE],
    f"{SM90}/fused": [RELAY, FORM, f"{CUDA}/launch", f"{SM90}/*", f"{SM90}/rows", *DEVICE],
    f"{SM90}/fused/gdn": [FORM, f"{CUDA}/launch", f"{SM90}/*", f"{SM90}/rows", f"{SM90}/fused/*", *DEVICE],
    f"{SM90}/fused/kda": [FORM, f"{CUDA}/launch", f"{SM90}/*", f"{SM90}/rows", f"{SM90}/fused/*", *DEVICE],
    f"{SM90}/records": [FORM, f"{CUDA}/launch", f"{SM90}/*", f"{SM90}/rows", *DEVICE],
    f"{SM90}/carry": [FORM, f"{CUDA}/launch", *DEVICE],
    "src/plan": [API, "src/problem", KERNELS, *(f"src/plan/{room}" for room in PLAN_ROOMS)],
    "src/plan/search": ["src/problem", KERNELS],  # integers only: it compiles for the device too
    "src/plan/devices": [API, "src/problem", "src/plan/*"],
    "src/plan/ops": [API, "src/problem", KERNELS, "src/plan/*", "src/plan/search"],
    "src/plan/describe": [API, "src/problem", KERNELS, "src/plan/*", "src/plan/search"],
    "src/run": [
        API,
        "src/problem",
        "src/plan",
        KERNELS,
        f"{CUDA}/args.h",
        f"{CUDA}/launch/status.h",
        f"{CUDA}/ptx/grid.cuh",
    ],
    "src/api": [API, "src/problem", "src/plan", "src/run", KERNELS],
    "tools/arrays": [API],
    "tools/case": [API],
    "tools/check": [API, "tools/case"],
    "tools/deltarelay": [API, "tools/arrays", *TOOLS],
    "tools/first_call": [API],
    "examples": [API],
    "python/binding": [API],
    "bench": [API, *TOOLS],
    "bench/alone": [API, "src"],  # kernels without the library around them
    "tests/abi": [API, *TOOLS],
    "tests/cli": [API, *TOOLS, "tools/arrays", "tools/deltarelay"],
    "tests/forward": [API, *TOOLS],
    "tests/fuzz": [API, "tools/case"],
    "tests/gpu": [API, *TOOLS, "tests/forward"],
    # unit tests may see the insides
    "tests/problem": [API, "src", *TOOLS, "tests/abi/frozen_0_2_0.h"],
    "tests/plan": [API, "src", *TOOLS],
    "tests/run": [API, "src"],
    "tests/launches": [API, "src", "tools/case"],
    "tests/stages": [API, "src", *TOOLS],
}
# third-party header prefix -> folders that may use it
THIRD_PARTY = {
    "hwy/": ["src/kernels/cpu", "tools/deltarelay"],
    "CLI/": ["tools/deltarelay"],
    "nlohmann/": ["tools", "tests", "bench"],
    "Python.h": ["python/binding"],
    "gtest/": ["tests"],
    "gmock/": ["tests"],
    **dict.fromkeys(
        ("cuda", "cub/", "cooperative_groups"),
        [CUDA, "src/run", "tools/check", "tools/first_call", "tests/gpu", "tests/run", "tests/launches", "bench/alone"],
    ),
}
GENERATED = {"deltarelay/commit.h"}  # written into the build folder
# The planner weighs variants as values and knows no backend. "cpu" is also the name of a device.
BACKEND_LIST = "src/plan/backends.cpp"
BACKEND = re.compile(r'\bk(?:Cpu|Reference|Cuda\w*)Backend\b|"(?:reference|cuda-sm\d+|fused|prepared)"')
ASSEMBLY = re.compile(r'\basm\b\s*(?:volatile)?\s*\(\s*"(?!")')
INCLUDE = re.compile(r'^\s*#\s*(?:include|define\s+HWY_TARGET_INCLUDE)\s+([<"])([^>"]+)[>"]')


def under(path: str, place: str) -> bool:
    if place.endswith("/*"):
        return path.rpartition("/")[0] == place[:-2]
    return path == place or path.startswith(place + "/")


def folder_of(path: str) -> str | None:
    """The deepest folder of the architecture that holds the file."""
    holders = [folder for folder in ALLOWED if under(path, folder)]
    return max(holders, key=len) if holders else None


def resolve(source: pathlib.Path, name: str) -> str | None:
    # The include paths of the build, and test folders whose headers a target exports.
    allowed = ALLOWED[folder_of(source.relative_to(ROOT).as_posix())]
    shared = [ROOT / place for place in allowed if place.startswith("tests/")]
    for base in (source.parent, ROOT / "src", ROOT / "include", ROOT / "tools", ROOT / "tests", ROOT, *shared):
        candidate = (base / name).resolve()
        if candidate.is_file() and ROOT in candidate.parents:
            return candidate.relative_to(ROOT).as_posix()
    return None


def check_include(source: pathlib.Path, folder: str, quote: str, name: str) -> str | None:
    if name in GENERATED:
        return None
    path = source.relative_to(ROOT).as_posix()
    for prefix, places in THIRD_PARTY.items():
        if name.startswith(prefix):
            if any(under(path, place) for place in places):
                return None
            return f"<{name}> may be used only under {', '.join(places)}"
    target = resolve(source, name) if quote == '"' or name.startswith("deltarelay/") else None
    if target is None:
        return f'"{name}" names no file of this tree (system headers are written with <>)' if quote == '"' else None
    if folder_of(target) == folder or any(under(target, place) for place in ALLOWED[folder]):
        return None
    return f'"{name}" is {target}; {folder} may include {", ".join([folder, *ALLOWED[folder]])} only'


def check_assembly(path: str, text: str) -> list[str]:
    """Inline PTX belongs into named functions of one folder. An empty asm, a compiler barrier, may stand anywhere."""
    if not under(path, CUDA) or under(path, f"{CUDA}/ptx"):
        return []
    lines = [text.count("\n", 0, match.start()) + 1 for match in ASSEMBLY.finditer(text)]
    return [f"{path}:{line}: inline PTX of kernels stands in {CUDA}/ptx" for line in lines]


def check_backends(path: str, lines: list[str]) -> list[str]:
    """Names and addresses of backends and variants in the planner."""
    if not under(path, "src/plan") or path == BACKEND_LIST:
        return []
    found = [(number, BACKEND.search(line.partition("//")[0])) for number, line in enumerate(lines, 1)]
    return [f"{path}:{number}: {match[0]}: only {BACKEND_LIST} names a backend" for number, match in found if match]


def check_source(source: pathlib.Path) -> list[str]:
    path = source.relative_to(ROOT).as_posix()
    text = source.read_text(encoding="utf-8")
    lines = text.splitlines()
    problems = check_assembly(path, text) + check_backends(path, lines)
    folder = folder_of(path)
    if folder is None:
        return [f"{path}: this folder has no place in the architecture yet; give it one in scripts/check_includes.py"]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        problem = match and check_include(source, folder, match[1], match[2])
        if problem:
            problems.append(f"{path}:{number}: {problem}")
    # Highway includes -inl.h files once per instruction set.
    once = source.suffix in {".h", ".hpp", ".cuh"} and not source.stem.endswith("-inl")
    if once and not any("#pragma once" in l or "#ifndef" in l for l in lines):
        problems.append(f"{path}: a header needs #pragma once")
    return problems


def check_columns(path: pathlib.Path) -> list[str]:
    """Lines of sources, scripts and build files that are too long."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix not in TEXT_SUFFIXES and path.name != "CMakeLists.txt" and name != ".ci/run":
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{name}:{number}: {len(line)} columns, expected at most {MAX_COLUMNS}; break the line"
        for number, line in enumerate(lines, 1)
        if len(line) > MAX_COLUMNS
    ]


def check_file(path: pathlib.Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    problems = check_columns(path)
    words = set(re.split(r"[_\-.]", path.name.lower()))
    for word in sorted(words & BANNED_WORDS):
        problems.append(f"{name}: '{word}' in a file name says nothing; name the file for what is in it")
    if path.suffix in TEXT_SUFFIXES:
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES:
            problems.append(f"{name}: {lines} lines, expected at most {MAX_LINES}; divide it by what it does")
    return problems


def main() -> int:
    files = [f for place in SEARCHED for f in sorted((ROOT / place).rglob("*")) if f.is_file()]
    files = [f for f in files if "__pycache__" not in f.parts]
    scripts = [f for place in ("scripts", "cmake", ".ci", ".") for f in sorted((ROOT / place).iterdir()) if f.is_file()]
    sources = [f for f in files if f.suffix in SOURCE_SUFFIXES]
    if not sources:
        print("src: expected sources of this repository, found none; run the script from its own checkout")
        return 1
    problems = [p for f in files + scripts for p in check_file(f)] + [p for f in sources for p in check_source(f)]
    print(
        "\n".join(problems)
        if problems
        else f"{len(sources)} sources: includes, names and lengths are as they should be"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
