#!/usr/bin/env python3
"""Shows where a kernel spends the shared-memory pipe, from a profile of ncu.

    DELTARELAY_UNWATCHED=1 ncu -o profile -k regex:fused_gdn -s 1 -c 1 --section SourceCounters <bench/alone program>
    ncu --import profile.ncu-rep --page source --csv > source.csv
    scripts/read_wavefronts.py source.csv [--per N] [--each]

Prints instructions executed, wavefronts and samples by kind of instruction. --per N divides counts by N, for example by
chunks and CTAs. --each also prints every instruction with wavefronts, in the order of the machine code.
"""

import argparse
import collections
import csv
import sys

COLUMNS = {
    "executed": "Instructions Executed",
    "wavefronts": "L1 Wavefronts Shared",
    "ideal": "L1 Wavefronts Shared Ideal",
    "samples": "# Samples",
}


def kind(instruction):
    """The name of an instruction, without predicate, operands, and everything after its fourth part."""
    words = [word for word in instruction.split() if not word.startswith("@")]
    return ".".join(words[0].split(".")[:4]) if words else ""


def read(lines):
    """(address, instruction, counts) of each instruction."""
    rows = csv.reader(lines)
    head = next((row for row in rows if "Source" in row), None)
    missing = [name for name in ("Address", "Source", *COLUMNS.values()) if head is None or name not in head]
    if missing:
        raise ValueError("expected the source page of ncu with columns " + ", ".join(missing))
    at = {name: head.index(name) for name in head}
    for row in rows:
        if len(row) < len(head):
            continue
        counts = {name: float(row[at[column]] or 0) for name, column in COLUMNS.items()}
        yield row[at["Address"]], row[at["Source"]].strip(), counts


def by_kind(instructions):
    """Counts per kind of instruction: most wavefronts first, then most executions."""
    sums = collections.defaultdict(lambda: dict.fromkeys(COLUMNS, 0.0))
    for _, instruction, counts in instructions:
        for name, count in counts.items():
            sums[kind(instruction)][name] += count
    return sorted(sums.items(), key=lambda item: (-item[1]["wavefronts"], -item[1]["executed"]))


def line(label, counts, per):
    columns = f"{counts['executed'] / per:10.2f} {counts['wavefronts'] / per:10.2f} {counts['ideal'] / per:8.2f}"
    return f"{label:<56} {columns} {counts['samples']:8.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv")
    parser.add_argument("--per", type=float, default=1.0)
    parser.add_argument("--each", action="store_true")
    arguments = parser.parse_args()
    with open(arguments.csv, encoding="utf-8") as lines:
        try:
            instructions = list(read(lines))
        except ValueError as error:
            sys.exit(f"{arguments.csv}: {error}")
    print(f"{'':<56} {'executed':>10} {'wavefronts':>10} {'ideal':>8} {'samples':>8}")
    kinds = by_kind(instructions)
    for name, counts in kinds:
        if counts["executed"] > 0:
            print(line(name, counts, arguments.per))
    print(line("all", {name: sum(counts[name] for _, counts in kinds) for name in COLUMNS}, arguments.per))
    if arguments.each:
        print()
        for address, instruction, counts in instructions:
            if counts["wavefronts"] > 0:
                print(line(f"{address[-5:]} {instruction[:49]}", counts, arguments.per))


if __name__ == "__main__":
    main()
