#!/usr/bin/env python3
"""Compares the plans of two commands.

    compare_plans.py OLD_COMMAND NEW_COMMAND [--map FILE] [--random N] [--devices NAME,...] [case files]

Both commands plan every case (tests/cases/*.txt unless files are named, and random cases drawn by the old command) for
GPU models and for this machine's CPU with fixed threads. Every field of the old plan's JSON must have the same value at
the place that the map gives (tests/plan/json-*.json): of a command of 0.1 by default, of an earlier commit of 0.2 with
--map. Differences that the map lists are counted; others are reported.
"""

import argparse
import collections
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAP = ROOT / "tests" / "plan" / "json-0.1-to-0.2.json"
DEVICES = ("h200", "h100", "a100", "b200", "gb200", "rtx3090", "rtx4090", "rtx5090", "rtx-pro-6000", "cpu")
CPU_WORDS = "threads=4"  # fixed, because the thread count of the machine would be another fact
STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
ABSENT = object()


def steps_of(path: str) -> list:
    """'costs[backend=cpu].measured' -> ['costs', {'backend': 'cpu'}, 'measured']"""
    steps = []
    for name, selector in STEP.findall(path):
        steps.append(name if name else dict(word.partition("=")[::2] for word in selector.split()))
    return steps


def find(tree, path: str):
    """The value at a path of members, or ABSENT."""
    for name in path.split("."):
        if not isinstance(tree, dict) or name not in tree:
            return ABSENT
        tree = tree[name]
    return tree


def take(tree, path: str):
    holder, _, name = path.rpartition(".")
    parent = find(tree, holder) if holder else tree
    return parent.pop(name, ABSENT) if isinstance(parent, dict) else ABSENT


def put(tree: dict, path: str, value) -> None:
    """Sets the value at a path. A selector without a match creates an entry; one with several matches sets all."""
    places = [tree]
    steps = steps_of(path)
    for step, following in zip(steps, steps[1:] + [None]):
        if isinstance(step, dict):
            chosen = []
            for entries in places:
                matching = [e for e in entries if all(e.get(k) == v for k, v in step.items())]
                if not matching:
                    matching = [dict(step)]
                    entries.extend(matching)
                chosen += matching
            places = chosen
            if following is None:
                for place in places:
                    place.update(value)
        elif following is None:
            for place in places:
                place[step] = value
        else:
            places = [p.setdefault(step, [] if isinstance(following, dict) else {}) for p in places]


def holds(conditions: dict, old: dict) -> bool:
    return all((None if (found := find(old, path)) is ABSENT else found) == value for path, value in conditions.items())


def expected_of(old: dict, rules: dict) -> dict:
    """The fields of an old plan at their new paths."""
    expected = copy.deepcopy(old)
    for rule in rules["moved"]:
        if not holds(rule.get("when", {}), old):
            continue
        value = find(expected, rule["copy"]) if "copy" in rule else take(expected, rule["from"])
        if value is not ABSENT:
            put(expected, rule["to"], value)
    for rule in rules["words"]:
        if isinstance(find(expected, rule["in"]), str):
            put(expected, rule["in"], find(expected, rule["in"]).replace(rule["from"], rule["to"]))
    return expected


def translate_line(line: str, rules: dict) -> str:
    words = {rule["from"]: rule["to"] for rule in rules["case_words"]}
    return " ".join(words.get(word, word) for word in line.split(" "))


def same_entry(a: dict, b: dict) -> bool:
    return all(a.get(key, "") == b.get(key, "") for key in ("backend", "variant", "rule"))


def step_differences(expected: list, found: list) -> list[tuple[str, object, object]]:
    """Steps of a plan in order. A new plan may have more of them, each of a stage that its map lists as added."""
    result = []
    rest = list(found)
    for entry in expected:
        while rest and rest[0].get("stage") != entry.get("stage"):
            result.append((f"steps[+{rest[0].get('stage')}]", ABSENT, rest.pop(0)))
        result += differences(entry, rest.pop(0) if rest else ABSENT, "steps[]")
    return result + [(f"steps[+{entry.get('stage')}]", ABSENT, entry) for entry in rest]


def differences(expected, found, path: str = "") -> list[tuple[str, object, object]]:
    """(path, expected, found) of every value that differs; a value that only one side has is ABSENT on the other."""
    if isinstance(expected, dict) and isinstance(found, dict):
        result = []
        for key in sorted(expected.keys() | found.keys()):
            place = f"{path}.{key}" if path else key
            result += differences(expected.get(key, ABSENT), found.get(key, ABSENT), place)
        return result
    if isinstance(expected, list) and isinstance(found, list) and path == "costs":
        result = []
        for entry in expected:  # matched by what they are costs of; their order is free
            match = next((other for other in found if same_entry(entry, other)), ABSENT)
            result += differences(entry, match, "costs[]")
        return result
    if isinstance(expected, list) and isinstance(found, list) and path == "steps":
        return step_differences(expected, found)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [d for i, (a, b) in enumerate(zip(expected, found)) for d in differences(a, b, f"{path}[{i}]")]
    # Numbers and texts; 1 is not True.
    return [] if type(expected) is type(found) and expected == found else [(path, expected, found)]


def reason_of(entry: dict) -> str:
    about = f"item {entry['item']}" if "item" in entry else entry["about"]
    return f"{about}: {entry['why']}"


def excuses(entry: dict, path: str, was, now) -> bool:
    """Does an entry for one field allow this difference? Indices of lists do not count."""
    if entry.get("field") != re.sub(r"\[\d+\]", "[]", path) or "instead_of" in entry:
        return False
    if "was_below" in entry and not (isinstance(was, int) and was < entry["was_below"]):
        return False
    texts = ((entry.get("was", ""), was), (entry.get("now", ""), now))
    return all(not pattern or (isinstance(value, str) and re.search(pattern, value)) for pattern, value in texts)


def replaced(old: dict, new: dict, rules: dict) -> dict | None:
    """The entry that explains a different plan as a whole, if there is one."""
    for entry in rules["differs"]:
        if "keeps" in entry and holds(entry["when"], old) and holds(entry["found"], new):
            return entry
    return None


def judge(old: dict, new: dict, rules: dict) -> tuple[list[str], list[str]]:
    """Differences of one plan: those that nobody listed, and the reasons of the intended ones."""
    unlisted, listed = [], []
    expected = expected_of(old, rules)
    expected.pop("case", None)
    new = {key: value for key, value in new.items() if key != "case"}
    entries = [entry for entry in rules["differs"] if holds(entry.get("when", {}), old)]
    excused = {}
    for entry in entries:
        if "instead_of" in entry and find(new, entry["field"]) is not ABSENT:
            excused.update((field, entry) for field in [entry["field"], *entry["instead_of"]])
    other = replaced(old, new, rules)
    for path, was, now in differences(expected, new):
        entry = excused.get(path) or next((e for e in entries if excuses(e, path, was, now)), None)
        if entry is None and other is not None and re.split(r"[.\[]", path)[0] not in other["keeps"]:
            entry = other
        if entry is not None:
            listed.append(reason_of(entry))
        elif was is not ABSENT or path not in rules["added"]:
            shown = ["nothing" if value is ABSENT else json.dumps(value)[:200] for value in (was, now)]
            unlisted.append(f"{path}: expected {shown[0]}, found {shown[1]}")
    return unlisted, listed


def plans_of(command: str, lines: list[str], device: str) -> tuple[dict, dict]:
    """Plans by case line, and messages of cases that were refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as cases:
        cases.write("\n".join(lines) + "\n")
        cases.flush()
        words = ["--with", CPU_WORDS] if device == "cpu" else []
        run = subprocess.run(
            [command, "plan", cases.name, "--device", device, "--json", *words],
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode not in (0, 1) or (run.returncode == 0 and not run.stdout):
        sys.exit(f"{command} plan: exit code {run.returncode}\n{run.stderr}")
    printed = json.loads(run.stdout) if run.stdout.strip() else []
    plans = {plan["case"]: plan for plan in (printed if isinstance(printed, list) else [printed])}
    refused = dict((case, message) for message, case in re.findall(r"^deltarelay: (.*)\n  in: (.*)$", run.stderr, re.M))
    return plans, refused


def without_device(line: str) -> str:
    """Plans each case for every device."""
    return " ".join(word for word in line.split() if not word.startswith("device="))


def read_lines(files: list[pathlib.Path]) -> list[str]:
    lines = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            line = line.partition("#")[0].strip()
            if line:
                lines.append(re.sub(r"^\S+:\s+", "", line))
    return lines


def random_lines(command: str, count: int) -> list[str]:
    if count == 0:
        return []
    run = subprocess.run(
        [command, "verify", "--random-cases", str(count), "--cost", "20000", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [match[1].strip() for match in re.finditer(r"^ok\s+(.*?)  \[", run.stdout, re.M)]


def has_new_words(line: str, rules: dict) -> bool:
    words = rules["new_case_words"]
    return bool(words) and any(re.match(words, word) for word in line.split())


def old_words(line: str, rules: dict) -> str:
    """Converts a line of the current case files for the command of 0.1."""
    words = {rule["to"]: rule["from"] for rule in rules["case_words"]}
    return " ".join(words.get(word, word) for word in line.split(" "))


def compare(old_command: str, new_command: str, lines: list[str], devices: list[str], rules: dict) -> int:
    listed = collections.Counter()
    planned = both_refused = 0
    failures = []
    for device in devices:
        old_plans, old_refused = plans_of(old_command, [old_words(line, rules) for line in lines], device)
        new_plans, new_refused = plans_of(new_command, lines, device)
        for line, old in old_plans.items():
            new = new_plans.get(translate_line(line, rules))
            if new is None:
                failures.append((line, [f"refused by the new command: {new_refused.get(translate_line(line, rules))}"]))
                continue
            planned += 1
            unlisted, reasons = judge(old, new, rules)
            listed.update(set(reasons))
            if unlisted:
                failures.append((line, unlisted))
        for line, message in old_refused.items():
            if translate_line(line, rules) not in new_plans:
                both_refused += 1
                continue
            entry = next((d for d in rules["differs"] if "message" in d and re.search(d["message"], message)), None)
            if entry:
                listed[reason_of(entry)] += 1
            else:
                failures.append((line, [f"refused by the old command alone: {message}"]))
    for line, found in failures:
        print(f"differs: {line}")
        for text in found[:10]:
            print(f"    {text}")
    kinds = collections.Counter(
        re.sub(r"[0-9]+", "N", text.partition(": expected")[0]) for _, found in failures for text in found
    )
    for kind, count in kinds.most_common():
        print(f"  not listed, {count} times: {kind}")
    print(f"{planned} plans compared, {len(failures)} differ; {both_refused} cases refused by both")
    for reason, count in listed.most_common():
        print(f"  on purpose, {count} plans: {reason}")
    return 1 if failures or planned == 0 else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old_command")
    parser.add_argument("new_command")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=300, metavar="N", help="random cases that the old command draws")
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--map", type=pathlib.Path, default=MAP, help="where the fields of the old plans are")
    arguments = parser.parse_args()
    rules = json.loads(arguments.map.read_text(encoding="utf-8"))
    files = arguments.files or sorted((ROOT / "tests" / "cases").glob("*.txt"))
    lines = read_lines(files) + [
        translate_line(line, rules) for line in random_lines(arguments.old_command, arguments.random)
    ]
    lines = list(dict.fromkeys(without_device(line) for line in lines))
    unknown = [line for line in lines if has_new_words(line, rules)]
    print(f"{len(lines)} cases, {len(unknown)} of them with words that the old command does not have")
    lines = [line for line in lines if line not in unknown]
    return compare(arguments.old_command, arguments.new_command, lines, arguments.devices.split(","), rules)


if __name__ == "__main__":
    sys.exit(main())
