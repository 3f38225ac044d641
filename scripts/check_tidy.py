#!/usr/bin/env python3
"""Runs clang-tidy over src/ and tools/. Checks a file again only if it, one of its headers or the rules have changed.

    scripts/check_tidy.py <build folder> [--alone] [part of a file name]...

Files of one folder with the same options are checked together, as one source that includes them, small folders with
others: most of the time goes into the headers of the standard library, which are then read once. If that source does
not pass, for example because two files give one name to different things, its halves are checked, and so on down to
single files: a file has findings only if it has them alone. Of a source that Highway compiles once per instruction set,
only some sets are checked. --alone checks every file alone and for every set, and follows paths as far as clang does by
default. The build folder needs compile_commands.json. Exit 77: clang-tidy 14 is not installed.
"""

import concurrent.futures
import contextlib
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
# clang's analyzer treats files that a source of this name includes as that source's own text.
TOGETHER = "UnifiedSource"
# Folders are joined up to this number of files. After a change all files of a source are checked again.
MOST_TOGETHER = 40
# The analyzer stops in a function after this number of states. clang's default, 225,000, goes into strings and
# containers of the standard library: functions that use several of them end at either number, and took most of the
# time of this check. Almost every block that the default reaches is reached with this number too.
STATES = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=40000"]
# Highway's foreach_target.h includes the source that includes it, and Highway's headers, once per instruction set. The
# headers take most of the time. These sets compile no line that AVX-512 and the portable set do not compile, too.
FOR_EACH_SET = "foreach_target.h"
LEFT_OUT_SETS = ("HWY_AVX2", "HWY_SSE4", "HWY_SSSE3")


def find_tool() -> str | None:
    for name in ("clang-tidy-14", "clang-tidy"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            if "version 14." in version:
                return name
    return None


def name_of(path: str) -> str:
    """The path inside the repository; nothing for other files."""
    file = pathlib.Path(path)
    return file.relative_to(ROOT).as_posix() if ROOT in file.parents else ""


def options_of(entry: dict) -> list[str]:
    """The words of the compiler's command without the compiler, its input and its output."""
    words = shlex.split(entry["command"])
    if "ccache" in pathlib.Path(words[0]).name:
        words = words[1:]
    output = words.index("-o")
    return [word for word in words[1:output] + words[output + 2 :] if word not in ("-c", entry["file"])]


def with_few_sets(entry: dict) -> dict:
    """The entry, compiled without the sets that are left out."""
    start = "-DHWY_DISABLED_TARGETS="
    words = shlex.split(entry["command"])
    disabled = [word.removeprefix(start) for word in words if word.startswith(start)]
    kept = [word for word in words if not word.startswith(start)]
    kept.insert(-1, f"{start}({'|'.join([*LEFT_OUT_SETS, *disabled])})")
    return {**entry, "command": shlex.join(kept)}


def kept_by_ninja(build: pathlib.Path) -> dict[str, list[str]]:
    """What the compiler read for each object that ninja has built, by the object's path; nothing without ninja."""
    if not (build / ".ninja_deps").exists() or not shutil.which("ninja"):
        return {}
    listing = subprocess.run(["ninja", "-t", "deps"], cwd=build, capture_output=True, text=True).stdout
    kept = {}
    for block in listing.split("\n\n"):
        head, *paths = block.splitlines() or [""]
        if head.endswith("(VALID)"):
            kept[head.split(": #deps")[0]] = [path.strip() for path in paths]
    return kept


class Inputs:
    """What the compiler reads for each source."""

    def __init__(self, build: pathlib.Path):
        self.kept = kept_by_ninja(build)
        self.digests = {}

    def of(self, entry: dict) -> list[str]:
        """Every file; if the compiler must be asked, those outside the system's folders."""
        words = shlex.split(entry["command"])
        folder, made = pathlib.Path(entry["directory"]), words[words.index("-o") + 1]
        kept = self.kept.get(made, [])
        with contextlib.suppress(FileNotFoundError):  # the object or a header is gone
            built = (folder / made).stat().st_mtime
            if kept and all((folder / path).stat().st_mtime <= built for path in kept):
                return sorted(set(kept))
        compiler = [word for word in words[:2] if "ccache" not in pathlib.Path(word).name][0]
        command = [compiler, *options_of(entry), "-MM", entry["file"]]
        listing = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
        return sorted(set(re.sub(r"\\\n", " ", listing).split(": ", 1)[1].split()))

    def digest(self, path: pathlib.Path) -> bytes:
        if path not in self.digests:
            self.digests[path] = hashlib.sha256(path.read_bytes()).digest()
        return self.digests[path]

    def fingerprint(self, entries: list[dict], further: list[str]) -> str:
        digest = hashlib.sha256("\n".join(further).encode())
        digest.update((ROOT / ".clang-tidy").read_bytes())
        for entry in entries:
            digest.update(entry["command"].encode())
            for path in self.of(entry):
                digest.update(path.encode())
                digest.update(self.digest(pathlib.Path(entry["directory"]) / path))
        return digest.hexdigest()


class Judge:
    def __init__(self, tool: str, build: pathlib.Path, further: list[str]):
        self.tool, self.inputs, self.further = tool, Inputs(build), further
        self.stamps = build / "tidy"
        self.stamps.mkdir(exist_ok=True)

    def findings(self, file: str, entry: dict) -> str:
        """What clang-tidy says of a file with the options of an entry; nothing if it passes."""
        # Ignore warning options that only the other compiler has.
        options = ["--extra-arg=-Wno-unknown-warning-option", f"--config-file={ROOT / '.clang-tidy'}", *self.further]
        command = [self.tool, "--quiet", *options, file, "--", *options_of(entry)]
        result = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
        return "" if result.returncode == 0 else result.stdout + result.stderr

    def alone(self, entry: dict) -> dict:
        """Findings by file; nothing if there are none."""
        name = name_of(entry["file"])
        stamp = self.stamps / name.replace("/", "__")
        digest = self.inputs.fingerprint([entry], self.further)
        if stamp.exists() and stamp.read_text() == digest:
            return {}
        found = self.findings(entry["file"], entry)
        if not found:
            stamp.write_text(digest)
        return {name: found} if found else {}

    def together(self, entries: list[dict]) -> dict:
        if len(entries) == 1:
            return self.alone(entries[0])
        names = [entry["file"] for entry in entries]
        key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
        source = self.stamps / f"{TOGETHER}-{folder_of(entries[0]).replace('/', '-')}-{key}.cpp"
        stamp = source.with_suffix(".passed")
        digest = self.inputs.fingerprint(entries, self.further)
        if stamp.exists() and stamp.read_text() == digest:
            return {}
        source.write_text("".join(f'#include "{file}"  // NOLINT(bugprone-suspicious-include)\n' for file in names))
        said = self.findings(str(source), entries[0])
        if not said:
            stamp.write_text(digest)
            return {}
        half = len(entries) // 2
        found = {**self.together(entries[:half]), **self.together(entries[half:])}
        if not found:
            reason = next((line for line in said.splitlines() if "error:" in line), said)
            print(f"{len(entries)} files pass, but not together, which takes longer: {reason}")
        return found


def folder_of(entry: dict) -> str:
    """`src/kernels` of src/kernels/cpu/isa.cpp."""
    return "/".join(name_of(entry["file"]).split("/")[:2])


def joined(folders: dict) -> list[list[dict]]:
    """The entries of folders of src/, or of tools/, with the same options, by (folder, options)."""
    sources = {}
    for (folder, *options), entries in sorted(folders.items(), key=lambda item: len(item[1])):
        some = sources.setdefault((folder.split("/")[0], *options), [[]])
        if len(some[-1]) + len(entries) > MOST_TOGETHER:
            some.append([])
        some[-1] += entries
    return [entries for some in sources.values() for entries in some if entries]


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--alone"]
    alone = len(words) < len(sys.argv) - 1
    if not words:
        print(__doc__)
        return 2
    tool = find_tool()
    if tool is None:
        print("clang-tidy 14 is not installed: the code was not judged by it")
        return 77
    build = pathlib.Path(words[0]).resolve()
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        name = name_of(entry["file"])
        # clang 14 does not support current CUDA versions.
        if (
            name.startswith(JUDGED)
            and not name.endswith(".cu")
            and (len(words) == 1 or any(part in name for part in words[1:]))
        ):
            entries[name] = entry
    if not entries:
        print(f"no source under {' or '.join(JUDGED)} is in {build / 'compile_commands.json'}")
        return 1
    judge = Judge(tool, build, [] if alone else [f"--extra-arg={word}" for word in STATES])
    single, folders = [], {}
    # From the last name on: verify.cpp includes most of tools/check, and clang 14 takes no header of that namespace
    # after deltarelay.hpp, which has a function of its name.
    for name, entry in sorted(entries.items(), reverse=True):
        for_each_set = FOR_EACH_SET in (ROOT / name).read_text(encoding="utf-8")
        if alone or for_each_set:
            single.append([entry if alone else with_few_sets(entry)])
        else:
            folders.setdefault((folder_of(entry), *options_of(entry)), []).append(entry)
    groups = [*single, *joined(folders)]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(judge.together, sorted(groups, key=len, reverse=True)):
            failures += len(found)
            for name, findings in found.items():
                print(f"{name}:\n{findings}")
    print(f"{len(entries)} files, {failures} with findings")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
