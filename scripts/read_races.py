#!/usr/bin/env python3
"""Groups reports of racecheck by the instructions at their addresses.

    scripts/read_races.py <log of compute-sanitizer --tool racecheck>... <machine code>...

Prints one line for each kind of first and second access of a kernel, with its count. Machine code is a cubin, object or
library, or what cuobjdump -sass printed of one, and must be that of the run. Needs cuobjdump and c++filt on PATH. Let
racecheck print all its reports (--print-limit). Reports that it counted and did not print are named at the end, and so
are logs whose run counted no further; then the exit code is 1. A kind tells which code is meant (docs/notebooks/*,
"Sanitizers"), not whether it is a race.
"""

import collections
import re
import shutil
import subprocess
import sys

ACCESS = re.compile(r"(Read|Write) access at (?:void )?(.+?)\+(0x[0-9a-f]+)")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+([^;]*);")
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
MOST = re.compile(r"Maximum number of hazards", re.IGNORECASE)
REPORT = re.compile(r"^=+ (?:Error|Warning): Race reported", re.MULTILINE)


def plain(kernel):
    """A name as both tools would write it: without return type, casts, arguments and spaces."""
    name = re.sub(r"\((?:int|bool|[\w:]+)\)(?=-?\d)", "", kernel)
    name = re.sub(r"\s", "", name.removeprefix("void "))
    name = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", name))
    depth = 0
    for i, c in enumerate(name):  # arguments begin at the first parenthesis outside <>
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and not name[i:].startswith("(anonymousnamespace)"):
            return name[:i]
    return name


def code_of(text, demangle):
    """{plain name: {address: instruction}} from the output of cuobjdump -sass. `demangle` takes and returns a list."""
    parts = [part.partition("\n") for part in text.split("Function : ")[1:]]
    names = demangle([name.strip() for name, _, _ in parts])
    return {
        plain(name): {int(m[1], 16): m[2].strip() for m in INSTRUCTION.finditer(body)}
        for name, (_, _, body) in zip(names, parts)
    }


def kind_of(instruction):
    """An instruction without register numbers, with addresses in whole KB."""
    text = re.sub(r"\bU?R\d+\b", "R", instruction)
    return re.sub(r"0x([0-9a-f]+)", lambda m: f"{int(m[1], 16) // 1024}K", text)


def races_of(log, code):
    """Counter of (kernel, first access, set of second accesses)."""
    races = collections.Counter()
    starts = [m.start() for m in REPORT.finditer(log)] + [len(log)]
    for begin, end in zip(starts, starts[1:]):
        accesses = []
        for how, kernel, offset in ACCESS.findall(log[begin:end]):
            name = plain(kernel)
            if name not in code:
                raise SystemExit(f"read_races: no machine code of {name} in the files given")
            accesses.append(f"{how.lower()} {kind_of(code[name].get(int(offset, 16), '?'))}")
        races[
            (
                name.rsplit("::", 1)[-1] if "<" not in name else re.sub(r"^.*?(\w+<)", r"\1", name),
                accesses[0],
                tuple(sorted(set(accesses[1:]))),
            )
        ] += 1
    return races


def missing_of(log):
    """What a log says it does not show, or "": (60 displayed of 139), counting ended."""
    found = SUMMARY.search(log)
    missing = []
    if not found:
        missing.append("no summary: the run was ended")
    elif int(found[1]) < int(found[2]) + int(found[3]):
        missing.append(f"{found[1]} displayed of {int(found[2]) + int(found[3])}")
    if MOST.search(log):
        missing.append("the run counted no further")
    return ", ".join(missing)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    if not shutil.which("cuobjdump") or not shutil.which("c++filt"):
        raise SystemExit("read_races: cuobjdump and c++filt are needed on PATH")

    def run(*words, text=None):
        return subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout

    logs, code = {}, {}
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            content = file.read()
        is_binary = content.startswith(b"\x7fELF")
        text = run("cuobjdump", "-sass", path) if is_binary else content.decode("utf-8", "replace")
        if is_binary or "Function : " in text:
            code.update(code_of(text, lambda names: run("c++filt", text="\n".join(names)).splitlines()))
        else:
            logs[path] = text
    races = sum((races_of(log, code) for log in logs.values()), collections.Counter())
    for (kernel, first, seconds), count in sorted(races.items()):
        print(f"{count:4d}  {kernel}: {first}, then {'; '.join(seconds)}")
    missing = {path: missing_of(log) for path, log in logs.items() if missing_of(log)}
    for path, what in missing.items():
        print(f"not shown  {path}: {what}")
    print(f"{sum(races.values())} reports, {len(races)} kinds")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
