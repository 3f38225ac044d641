#!/usr/bin/env python3
"""Checks a wheel: its tag, its files, the libraries it needs and where it looks for them.

    check_wheel.py [--allow LIBRARY]... <wheel>...

A wheel of deltarelay or deltarelay-cuda may need the C and C++ runtimes and nothing else. --allow adds a library
(libhwy.so.1, for a wheel that stays on the machine it was built on). Needs readelf.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNTIMES = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")
SONAME = "libdeltarelay.so.0.2"
# For each package: the tag, the files it must have, and where they look for the library.
EXPECTED = {
    "deltarelay": (
        "cp310-abi3",
        ["__init__.py", "__main__.py", "_command.py", "py.typed", "_core.abi3.so", SONAME, "bin/deltarelay"],
        {"_core.abi3.so": "$ORIGIN", "bin/deltarelay": "$ORIGIN/.."},
    ),
    "deltarelay_cuda": (
        "py3-none",
        ["__init__.py", "py.typed", SONAME, "bin/deltarelay"],
        {"bin/deltarelay": "$ORIGIN/.."},
    ),
}


def version_of_project() -> str:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"project\(deltarelay VERSION ([0-9.]+)", text)[1]


def read_elf(option: str, file: pathlib.Path) -> str:
    return subprocess.run(["readelf", "--wide", option, file], check=True, capture_output=True, text=True).stdout


def highest(versions: set[str]) -> str:
    return max(versions, key=lambda version: [int(part) for part in version.split(".")], default="none")


def check_binary(file: pathlib.Path, name: str, looks_in: str | None, allowed: set[str]) -> list[str]:
    problems = []
    dynamic = read_elf("--dynamic", file)
    for needed in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic):
        if not RUNTIMES.fullmatch(needed) and needed not in allowed | {SONAME}:
            problems.append(f"{name}: expected to need the C and C++ runtimes alone, found {needed}")
    paths = [path for found in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) for path in found.split(":")]
    problems += [
        f"{name}: expected run paths below $ORIGIN, found {path}" for path in paths if not path.startswith("$ORIGIN")
    ]
    if looks_in is not None and SONAME in dynamic and looks_in not in paths:
        problems.append(f"{name}: expected the run path {looks_in}, found {paths}")
    if name.endswith(SONAME) and f"[{SONAME}]" not in dynamic:
        problems.append(f"{name}: expected the soname {SONAME}")
    versions = read_elf("--version-info", file)
    print(
        f"  {name}: {file.stat().st_size / 1e6:.1f} MB, glibc {highest(set(re.findall(r'GLIBC_([0-9.]+)', versions)))},"
        f" libstdc++ {highest(set(re.findall(r'GLIBCXX_([0-9.]+)', versions)))}"
    )
    return problems


def check_wheel(wheel: pathlib.Path, allowed: set[str]) -> list[str]:
    parts = wheel.name.removesuffix(".whl").split("-")
    if len(parts) != 5 or parts[0] not in EXPECTED:
        return [f"{wheel.name}: expected a wheel of {' or '.join(EXPECTED)}"]
    package, version, tag = parts[0], parts[1], "-".join(parts[2:4])
    expected_tag, expected_files, run_paths = EXPECTED[package]
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    problems = []
    if tag != expected_tag:
        problems.append(f"{wheel.name}: expected the tag {expected_tag}, found {tag}")
    if version != version_of_project():
        problems.append(f"{wheel.name}: expected version {version_of_project()} of CMakeLists.txt, found {version}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        names = [name for name in archive.namelist() if not name.endswith("/")]  # auditwheel adds folders
        problems += [
            f"{wheel.name}: expected {package}/{name}, found no such file"
            for name in expected_files
            if f"{package}/{name}" not in names
        ]
        for name in ("LICENSE", "NOTICE"):
            if not any(re.fullmatch(rf".*\.dist-info/.*{name}", found) for found in names):
                problems.append(f"{wheel.name}: expected {name} in its dist-info, found none")
        libraries = [name for name in names if name.endswith(SONAME) or re.search(r"\.so(\.|$)", name)]
        programs = [name for name in names if "/bin/" in name]
        for name in sorted({*libraries, *programs}):
            problems += check_binary(
                pathlib.Path(folder, name), name, run_paths.get(name.removeprefix(f"{package}/")), allowed
            )
        strangers = [name for name in names if not name.startswith((f"{package}/", f"{package}-"))]
        problems += [f"{wheel.name}: expected files of {package} alone, found {name}" for name in strangers]
        for name in programs:
            if not archive.getinfo(name).external_attr >> 16 & 0o100:
                problems.append(f"{name}: expected a program, found a file that cannot be executed")
    return problems


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--allow", action="append", default=[])
    arguments.add_argument("wheels", nargs="+", type=pathlib.Path)
    given = arguments.parse_args()
    problems = [problem for wheel in given.wheels for problem in check_wheel(wheel, set(given.allow))]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
