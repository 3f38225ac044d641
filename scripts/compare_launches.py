#!/usr/bin/env python3
"""Compares two logs of deltarelay-launches, of two builds: what would they launch differently?

    build/ci/bin/deltarelay-launches --random-cases 1000 tests/cases/*.txt > new.log
    scripts/compare_launches.py old.log new.log

Prints the first differences in words: the case, the setting, the launch, the field, and both values. Ends with status 1
if there is any, or if the logs have no case in common. A log may be compressed (.gz).
"""

import argparse
import collections
import difflib
import gzip
import pathlib
import re
import sys
from collections.abc import Iterator

NOTHING = "nothing"


def open_log(path: pathlib.Path):
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def blocks_in(path: pathlib.Path) -> Iterator[tuple[str, list[str]]]:
    """The cases of a log, in their order: the first line and the others."""
    first, lines = None, []
    with open_log(path) as log:
        for line in log:
            if line.startswith("case "):
                if first is not None:
                    yield first, lines
                first, lines = line.rstrip("\n"), []
            elif first is None:
                sys.exit(f"{path}: expected a log of deltarelay-launches, found {line[:60]!r}")
            else:
                lines.append(line.rstrip("\n"))
    if first is not None:
        yield first, lines


def settings_in(lines: list[str]) -> dict[str, list[str]]:
    """The lines below each setting of a case."""
    settings: dict[str, list[str]] = {}
    below: list[str] = []
    for line in lines:
        if line.startswith(" on "):
            below = settings.setdefault(line.strip(), [])
        else:
            below.append(line.strip())
    return settings


def name_of(line: str) -> str:
    """What a line is about: "launch KERNEL", "loaded KERNEL", "plan", "declined", ..."""
    words = line.split(" ")
    return " ".join(words[:2]) if words[0] in ("launch", "loaded") else words[0]


def fields_of(line: str) -> dict[str, str]:
    words = line.split(" ")
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    rest = " ".join(word for word in words if "=" not in word)
    return {"": rest, **fields}


def lines_differ(old: str, new: str) -> Iterator[str]:
    """The fields in which two lines of one name differ."""
    before, after = fields_of(old), fields_of(new)
    for field in [*before, *(field for field in after if field not in before)]:
        was, now = before.get(field, NOTHING), after.get(field, NOTHING)
        if was != now:
            yield f"{field or 'words'}: was {was}, is {now}"


def lists_differ(old: list[str], new: list[str]) -> Iterator[str]:
    """The differences between the lines of one setting."""
    before, after = [name_of(line) for line in old], [name_of(line) for line in new]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "equal":
            for a, b in zip(range(a0, a1), range(b0, b1), strict=True):
                if old[a] != new[b]:
                    for text in lines_differ(old[a], new[b]):
                        yield f"{a + 1}. {before[a]}: {text}"
            continue
        for a in range(a0, a1):
            yield f"{a + 1}. {before[a]}: is gone"
        for b in range(b0, b1):
            yield f"{b + 1}. {after[b]}: is new"


def case_differs(old: list[str], new: list[str]) -> Iterator[str]:
    """The differences between two blocks of one case."""
    before, after = settings_in(old), settings_in(new)
    for setting in [*before, *(setting for setting in after if setting not in before)]:
        if setting not in after:
            yield f"{setting}: is gone"
        elif setting not in before:
            yield f"{setting}: is new"
        elif before[setting] != after[setting]:
            for text in lists_differ(before[setting], after[setting]):
                yield f"{setting}: {text}"


def kind_of(text: str) -> str:
    """A difference without what varies from case to case."""
    text = re.sub(r"^on .*?: (\d+\. )?", "", text)
    text = re.sub(r"<.*?>(?=[: ])", "<>", text)
    return text.partition(": was")[0]


class Pairs:
    """Blocks of two logs by their case, whatever their order. Blocks at the same place are not kept."""

    def __init__(self, old: pathlib.Path, new: pathlib.Path):
        self.old, self.new = blocks_in(old), blocks_in(new)
        self.waiting_old: dict[str, list[str]] = {}
        self.waiting_new: dict[str, list[str]] = {}

    def __iter__(self) -> Iterator[tuple[str, list[str], list[str]]]:
        old, new = next(self.old, None), next(self.new, None)
        while old is not None or new is not None:
            if old is not None and new is not None and old[0] == new[0]:
                yield old[0], old[1], new[1]
            else:
                if old is not None:
                    self.waiting_old[old[0]] = old[1]
                if new is not None:
                    self.waiting_new[new[0]] = new[1]
                for block in (old, new):
                    if block is not None and block[0] in self.waiting_old and block[0] in self.waiting_new:
                        yield block[0], self.waiting_old.pop(block[0]), self.waiting_new.pop(block[0])
            old, new = next(self.old, None), next(self.new, None)


def compare(old: pathlib.Path, new: pathlib.Path, most: int) -> int:
    compared = launches = differing = shown = 0
    kinds: collections.Counter[str] = collections.Counter()
    pairs = Pairs(old, new)
    for case, before, after in pairs:
        compared += 1
        launches += sum(line.startswith("  launch ") for line in before)
        if before == after:
            continue
        differing += 1
        texts = list(case_differs(before, after))
        kinds.update(kind_of(text) for text in texts)
        if shown < most:
            print(case)
        for text in texts[: most - shown]:
            print(f"    {text}")
        shown += min(len(texts), most - shown)
    for found, where in ((pairs.waiting_old, old), (pairs.waiting_new, new)):
        for case in list(found)[:most]:
            print(f"only in {where}: {case}")
    alone = len(pairs.waiting_old) + len(pairs.waiting_new)
    for kind, count in kinds.most_common(most):
        print(f"  {count} times: {kind}")
    print(f"{compared} cases with {launches} launches compared, {differing} differ, {alone} in one log only")
    return 1 if differing or alone or compared == 0 else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--most", type=int, default=20, metavar="N", help="differences to print (default: 20)")
    arguments = parser.parse_args()
    return compare(arguments.old, arguments.new, arguments.most)


if __name__ == "__main__":
    sys.exit(main())
