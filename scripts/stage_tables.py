#!/usr/bin/env python3
"""Tables of the stages alone, from results of the cases in tests/cases/stage_tables.txt (results_table.py prints them).

    scripts/stage_tables.py <results>... <folder>

joins what `deltarelay bench` wrote into <folder>/<gpu>-stages.json and prints the name of that file without its end.

The state pass: cuLA's table of context parallelism inside a GPU, with the segments of the planner on and off, cut as
cuLA cuts it, and FLA's kernel beside both. The chunk-local stage: cuLA's tables of `chunk_intra` and `recompute_w_u`,
as a share of the bandwidth of a copy, beside FLA's kernels.
"""

import json
import math
import pathlib
import re
import sys

K = 1024
CHUNK = 64
MOST_US_A_CHUNK = 0.8  # of a pass that is not cut
LEAST_GAIN = 0.98  # of a cut pass over one that is not cut
LONG_TOKENS = 4096  # from here on a chunk-local stage is held to the bandwidth of a copy and to FLA's kernels


def is_stage(row: dict) -> bool:
    return any(word in ("state-pass", "chunk-local") for word in row["line"].split()[:3])


def of_stages(results: dict) -> bool:
    return bool(results["rows"]) and all(is_stage(row) for row in results["rows"])


def words_of(row: dict) -> dict:
    return dict(word.split("=", 1) for word in row["line"].split() if "=" in word)


def number(text: str) -> int:
    return int(text.removesuffix("k")) * (K if text.endswith("k") else 1)


def lengths_of(row: dict) -> list[int]:
    words = words_of(row)
    if "batch" in words:
        count, length = words["batch"].split("x")
        return [number(length)] * int(count)
    parts = [part.partition("x") for part in words["seqs"].split(",")]
    return [number(length) for length, _, times in parts for _ in range(int(times or 1))]


def required_ms(row: dict, known: dict) -> float | None:
    """Of a state pass whose longest sequence has a requirement: that, in proportion to the tokens."""
    lengths = lengths_of(row)
    with_init = "gate=init" in row["line"]
    base = known.get("state_pass_ms", {}).get(f"{max(lengths) // K}k-h{words_of(row)['hv']}")
    if "state-pass" not in row["line"] or base is None or max(lengths) % K != 0:
        return None
    return base * sum(lengths) / max(lengths) * (known["as_initialised"] if with_init else 1)


def time_of(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def gain(row: dict) -> float:
    return row["unsplit_ms"] / row["ms"]


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def state_pass_table(rows: list[dict], known: dict) -> list[str]:
    head = ["case", "T", "cut", "segments", "CP off, ms", "CP on, ms", "speed-up", "required, ms"]
    head += ["as cuLA cuts, ms", "its segments", "FLA, ms"]
    lines = ["| " + " | ".join(head) + " |", "|---" * 3 + "|--:" * (len(head) - 3) + "|"]
    for row in rows:
        required = required_ms(row, known)
        reached = required is not None and row["ms"] <= required
        cells = [
            f"`{row['case']}`",
            f"{sum(lengths_of(row)):,}",
            "yes" if row.get("cut_sequences") else "no",
            str(row["segments"]),
            time_of(row["unsplit_ms"]),
            f"**{time_of(row['ms'])}**" if reached else time_of(row["ms"]),
            f"{gain(row):.2f}x",
            time_of(required),
            time_of(row.get("policy_ms")),
            str(row.get("policy_segments", "-")),
            time_of(row["peers"].get("fla")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    cut = [gain(row) for row in rows if row.get("cut_sequences")]
    uncut = [1 / gain(row) for row in rows if not row.get("cut_sequences")]
    lines.append("")
    if cut:
        lines.append(
            f"Cut: {len(cut)} cases, speed-up {geometric_mean(cut):.2f}x (geometric mean), "
            f"{max(cut):.2f}x at best, {min(cut):.2f}x at worst."
        )
    if uncut:
        mean = sum(uncut) / len(uncut)
        lines.append(f"Not cut: {len(uncut)} cases, {mean:.3f} of the time with CP off, {max(uncut):.3f} at worst.")
    return lines


def chunk_local_table(rows: list[dict], known: dict) -> list[str]:
    head = ["case", "T", "HV", "ms", "GB/s", "of a copy", "FLA, ms", "FLA / ours"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    copy = known.get("copy_gbytes_per_s", math.inf)  # known for one GPU
    for row in rows:
        fla = row["peers"].get("fla")
        share = row["gbytes_per_s"] / copy
        cells = [
            f"`{row['case']}`",
            f"{sum(lengths_of(row)):,}",
            words_of(row)["hv"],
            time_of(row["ms"]),
            f"{row['gbytes_per_s']:.0f}",
            f"{share:.2f}" if share > 0 else "-",
            time_of(fla),
            "-" if fla is None else f"{fla / row['ms']:.2f}x",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


TABLES = (  # title, start of the names, table
    ("State pass, gates that forget", "state-pass-", state_pass_table),
    ("State pass, gates as initialised", "init-state-pass-", state_pass_table),
    ("chunk_intra", "intra-", chunk_local_table),
    ("recompute_w_u", "recompute-", chunk_local_table),
)


def tables(results: dict, known: dict) -> str:
    where = f"{results['device']}, driver {results['driver']}, CUDA {results['cuda']}"
    lines = [f"{where}, {results['date']}, commit {results['commit']}. Bold: as fast as required."]
    for title, start, table in TABLES:
        rows = [row for row in results["rows"] if row["case"].startswith(start)]
        if rows:
            lines += ["", f"## {title}", "", *table(rows, known)]
    return "\n".join(lines) + "\n"


def misses(results: dict, known: dict) -> list[str]:
    """What is not as required, and what of the tables was not measured with it."""
    found = []
    for row in results["rows"]:
        longest, required = max(lengths_of(row)), required_ms(row, known)
        if "state-pass" in row["line"]:
            if required is not None and row["ms"] > required:
                found.append(f"{row['case']}: {row['ms']:.4f} ms, required {required:.4f}")
            if gain(row) < LEAST_GAIN:
                found.append(f"{row['case']}: {gain(row):.3f}x of the pass that is not cut, required {LEAST_GAIN}")
            a_chunk = 1000 * row["unsplit_ms"] / math.ceil(longest / CHUNK)
            if a_chunk > MOST_US_A_CHUNK:
                found.append(f"{row['case']}: {a_chunk:.2f} us a chunk when not cut, required {MOST_US_A_CHUNK}")
        elif sum(lengths_of(row)) >= LONG_TOKENS:
            share = row["gbytes_per_s"] / known["copy_gbytes_per_s"]
            if share < known["chunk_local_share"]:
                found.append(f"{row['case']}: {share:.2f} of a copy's bandwidth, required {known['chunk_local_share']}")
            if row["peers"].get("fla", math.inf) < row["ms"]:
                found.append(f"{row['case']}: {row['ms']:.4f} ms, slower than FLA's {row['peers']['fla']:.4f}")
    return found


def join(files: list[dict]) -> dict:
    """The first file with the rows of all. `beside` of a row is its case as cuLA cuts it."""
    rows = [row for file in files for row in file["rows"]]
    for row in rows:
        if "beside" in row:
            other = row.pop("beside")
            row["policy_ms"], row["policy_segments"] = other["ms"], other["segments"]
    return {**files[0], "rows": rows}


def main() -> int:
    *paths, folder = map(pathlib.Path, sys.argv[1:])
    files = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.stat().st_size]
    files = [file for file in files if file["rows"]]  # a file without rows does not name the GPU
    if not files:
        print("stages: expected a case that passes, found none", file=sys.stderr)
        return 1
    device = files[0]["device"].lower().removeprefix("nvidia ")
    name = re.sub(r"[^a-z0-9]+", "-", device).strip("-") + "-stages"
    (folder / f"{name}.json").write_text(json.dumps(join(files), indent=2) + "\n", encoding="utf-8")
    print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
