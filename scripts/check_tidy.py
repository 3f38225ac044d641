#!/usr/bin/env python3
"""Runs clang-tidy over src/ and tools/. Checks a file again only if it, one of its headers or the rules have changed.

    scripts/check_tidy.py <build folder> [--every-check] [part of a file name]...

--every-check adds the checks that tools/deltarelay/.clang-tidy leaves out because of their cost, and follows paths as
far as clang does by default. The build folder needs compile_commands.json. Exit 77: clang-tidy 14 is not installed.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
JUDGED = ("src/", "tools/")
COSTLY = "performance-unnecessary-value-param,bugprone-reserved-identifier"  # left out by tools/deltarelay/.clang-tidy
# The analyzer stops in a function after this number of states. clang's default, 225,000, goes into strings and
# containers of the standard library: functions that use several of them end at either number, and took most of the
# time of this check. Almost every block that the default reaches is reached with this number too.
STATES = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=40000"]


def find_tool() -> str | None:
    for name in ("clang-tidy-14", "clang-tidy"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            if "version 14." in version:
                return name
    return None


def dependencies(command: list[str], folder: str) -> list[str]:
    """Every project file that the compiler reads for this one."""
    kept = [word for word in command if word not in ("-c", "-o")]
    output = command[command.index("-o") + 1] if "-o" in command else None
    kept = [word for word in kept if word != output]
    if "ccache" in pathlib.Path(kept[0]).name:
        kept = kept[1:]
    listing = subprocess.run([*kept, "-MM", "-MF", "-"], cwd=folder, capture_output=True, text=True, check=True).stdout
    return sorted(set(re.sub(r"\\\n", " ", listing).split(": ", 1)[1].split()))


def fingerprint(entry: dict, further: list[str]) -> str:
    command = shlex.split(entry["command"])
    digest = hashlib.sha256("\n".join([entry["command"], *further]).encode())
    for folder in pathlib.Path(entry["file"]).parents:
        rules = folder / ".clang-tidy"
        if rules.exists():
            digest.update(rules.read_bytes())
        if folder == ROOT:
            break
    for path in dependencies(command, entry["directory"]):
        digest.update(path.encode())
        digest.update((pathlib.Path(entry["directory"]) / path).read_bytes())
    return digest.hexdigest()


def judge(tool: str, build: pathlib.Path, entry: dict, passed: pathlib.Path, further: list[str]) -> tuple[str, str]:
    """(file, findings); findings are empty if there are none."""
    name = pathlib.Path(entry["file"]).relative_to(ROOT).as_posix()
    stamp = passed / name.replace("/", "__")
    digest = fingerprint(entry, further)
    if stamp.exists() and stamp.read_text() == digest:
        return name, ""
    # Ignore warning options that only the other compiler has.
    command = [tool, "--quiet", "-p", str(build), "--extra-arg=-Wno-unknown-warning-option", *further, entry["file"]]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        stamp.write_text(digest)
        return name, ""
    return name, result.stdout + result.stderr


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--every-check"]
    every_check = len(words) < len(sys.argv) - 1
    further = [f"--checks={COSTLY}"] if every_check else [f"--extra-arg={word}" for word in STATES]
    if not words:
        print(__doc__)
        return 2
    tool = find_tool()
    if tool is None:
        print("clang-tidy 14 is not installed: the code was not judged by it")
        return 77
    build = pathlib.Path(words[0]).resolve()
    passed = build / "tidy"
    passed.mkdir(exist_ok=True)
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        name = file.relative_to(ROOT).as_posix() if ROOT in file.parents else ""
        # clang 14 does not support current CUDA versions.
        if (
            name.startswith(JUDGED)
            and file.suffix != ".cu"
            and (len(words) == 1 or any(part in name for part in words[1:]))
        ):
            entries[name] = entry
    if not entries:
        print(f"no source under {' or '.join(JUDGED)} is in {build / 'compile_commands.json'}")
        return 1
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, findings in pool.map(lambda e: judge(tool, build, e, passed, further), entries.values()):
            if findings:
                failures += 1
                print(f"{name}:\n{findings}")
    print(f"{len(entries)} files, {failures} with findings")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
