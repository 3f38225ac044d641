#!/usr/bin/env python3
"""Tables of measured results, made from the files of bench/results and from nothing else.

    scripts/results_table.py <results.json>          the table of one file, as Markdown
    scripts/results_table.py --short <results.json>  rows with targets, three a line, those that fall short first
    scripts/results_table.py --update <document>...  rewrite the generated sections of documents

A generated section stands between `<!-- table: KIND FILES -->` and `<!-- end of table -->`. Kinds and their files:

    results <file.json>                 all rows of bench/results
    some <file.json>                    a few rows of a GPU beside the best known elsewhere
    peers <peers.json>                  rows of bench/peers.py: this library beside other packages
    compare <file.json> <peers.json>    rows of a CPU beside other libraries
"""

import json
import pathlib
import re
import sys

import stage_tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTION = re.compile(r"(<!-- table: (\w+) ([^>]*?) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
PORTABLE = "cuda-sm80"


def thousands(value: float) -> str:
    return f"{value / 1000:,.0f}k"


def ratio(row: dict) -> str:
    peak = row.get("fma_peak_gflops")
    return f"{row['gflops'] / peak:.2f}" if peak else "-"


def on_gpu(results: dict) -> bool:
    return any(row.get("backend", "").startswith("cuda") for row in results["rows"])


def milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}"


def targets() -> dict:
    path = ROOT / "bench" / "targets.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cases": {}, "fixed": {}}


def per_flop(row: dict, other: dict) -> float:
    """Time per flop of a row as a multiple of that of another one."""
    return other["gflops"] / row["gflops"]


def limits_of(target: dict, row: dict, rows: dict) -> dict:
    """The targets of a row: `required` and `goal` in ms, if there are any. `rows`: of the same run, by case."""
    limits = {name: target[f"{name}_ms"] for name in ("required", "goal") if f"{name}_ms" in target}
    other = rows.get(target.get("per_flop_of"))
    if other is not None:
        limits["required"] = target["at_most"] * row["ms"] / per_flop(row, other)
    return limits


def judged(value: float, limits: dict) -> str:
    """The figure in bold when it is as good as required, with a star when it reaches the goal."""
    if value <= limits.get("goal", 0):
        return f"**{milliseconds(value)}** \\*"
    return f"**{milliseconds(value)}**" if value <= limits.get("required", 0) else milliseconds(value)


GPU_HEAD = ["case", "segments", "ms", "10 to 90 %", "required", "goal", "GB/s", "unsplit ms", "host us", "plan us"]
GPU_HEAD += ["workspace B/token-head", "error"]


def gpu_cells(row: dict, target: dict, rows: dict) -> list[str]:
    limits = limits_of(target, row, rows)
    return [
        f"`{row['case'] or row['line']}`",
        str(row["segments"]),
        judged(row["ms"], limits),
        f"{milliseconds(row['ms_low'])} to {milliseconds(row['ms_high'])}",
        *(milliseconds(limits[name]) if name in limits else "-" for name in ("required", "goal")),
        f"{row['gbytes_per_s']:.0f}",
        milliseconds(row["unsplit_ms"]) if row.get("cut_sequences") else "-",
        f"{row['host_us']:.1f}",
        f"{row['plan_us']:.1f}",
        f"{row['workspace_bytes_per_token_head']:.0f}",
        f"{row['error']:.1e}",
    ]


def elsewhere_cell(row: dict, target: dict, rows: dict) -> str:
    """Packages timed in the same run, then the others: one that could not be imported may be the faster."""
    peers = sorted((ms, name) for name, ms in row.get("peers", {}).items())
    cells = [f"{name} {milliseconds(ms)}" for ms, name in peers]
    if "elsewhere" in target:
        cells.append(target["elsewhere"])
    return "; ".join(cells) or "-"


def per_flop_cell(row: dict, target: dict, rows: dict) -> str:
    other = rows.get(target.get("per_flop_of"))
    return "-" if other is None else f"{per_flop(row, other):.2f} of {target['at_most']}"


def gpu_rows(rows: list[dict], results: dict, title: str, cell) -> list[str]:
    """A table of some rows of the results; `cell` gives its last column."""
    known = targets()
    # Milliseconds to reach are of one device.
    held = known["cases"] if results["device"] == known.get("device") else {}
    by_case = {row["case"]: row for row in results["rows"]}
    lines = ["| " + " | ".join([*GPU_HEAD, title]) + " |", "|---|" + "--:|" * (len(GPU_HEAD) - 1) + "---|"]
    for row in rows:
        target = held.get(row["case"], {})
        lines.append("| " + " | ".join([*gpu_cells(row, target, by_case), cell(row, target, by_case)]) + " |")
    return lines


def gpu_table(results: dict) -> str:
    """Whole calls on a GPU beside what they are held to, those of the portable kernels in a table of their own."""
    where = f"{results['device']}, driver {results['driver']}, CUDA {results['cuda']}"
    lines = [f"{where}, {results['date']}, commit {results['commit']}."]
    portable = [row for row in results["rows"] if row["backend"] == PORTABLE]
    others = [row for row in results["rows"] if row["backend"] != PORTABLE]
    if others:
        lines += ["", *gpu_rows(others, results, "elsewhere, ms", elsewhere_cell)]
        lines.append("")
        lines.append(
            "Bold: as fast as required; with a star: the goal. "
            "Elsewhere: timed in the same run where a name stands before a"
        )
        lines.append("figure alone, else m measured by us, p published for an H200, p100 for an H100.")
    if portable:
        lines.append("")
        lines.append(
            f"The portable kernels (`{PORTABLE}`), which every GPU from compute capability 8.0 on can run. "
            "Bold: as fast as required; with a"
        )
        lines.append(
            "star: the goal. Per flop: time for each of the 7 DK DV flops of a token-head, "
            "as a multiple of that of the row with D = 128, and"
        )
        lines.append("the most it may be, from which the milliseconds required follow.")
        lines += ["", *gpu_rows(portable, results, "per flop", per_flop_cell)]
    first_calls = results.get("first_call", [])
    if portable and first_calls:
        lines.append("")
    for first in first_calls:
        lines.append(
            f"First {first['rule'].upper()} call of a cold process, from loading the library to its result: "
            f"{first['first_call_ms']:.0f} ms, beside {first['context_ms']:.0f} ms for a bare CUDA context."
        )
    swept = [row for row in results["rows"] if row.get("sweep")]
    if swept:
        counts = sorted({int(n) for row in swept for n in row["sweep"]})
        lines += ["", "| case | " + " | ".join(f"{n} segments" for n in counts) + " | auto |"]
        lines.append("|---|" + "--:|" * (len(counts) + 1))
        for row in swept:
            cells = [milliseconds(row["sweep"][str(n)]) if str(n) in row["sweep"] else "-" for n in counts]
            lines.append(f"| `{row['case'] or row['line']}` | " + " | ".join(cells))
            lines[-1] += f" | {milliseconds(row['ms'])} ({row['segments']}) |"
    return "\n".join(lines) + "\n"


def short_table(results: dict) -> str:
    known = targets()
    if stage_tables.of_stages(results):
        if results["device"] != known.get("device"):
            return "nothing is required of stages on this device\n"
        return "\n".join(stage_tables.misses(results, known["stages"]) or ["all stages are as required"]) + "\n"
    held = known["cases"] if results["device"] == known.get("device") else {}
    by_case = {row["case"]: row for row in results["rows"]}
    short, enough = [], []
    for row in results["rows"]:
        required = limits_of(held.get(row["case"], {}), row, by_case).get("required")  # a goal alone requires nothing
        if required is None:
            continue
        (enough if row["ms"] <= required else short).append(f"{row['case']} {row['ms']:.4f} of {required:.3f}")
    lines = [f"{len(enough)} of {len(short) + len(enough)} figures are as required; ms of those required"]
    for cells in (short, enough):
        lines += ["  ".join(f"{cell:<38}" for cell in cells[i : i + 3]).rstrip() for i in range(0, len(cells), 3)]
        if cells is short and short:
            lines.append("-")
    return "\n".join(lines) + "\n"


# Prefixes of the cases that differ from another one only by their gates, in words.
MODEL_GATES = {
    "init": "as initialised",
    "softplus": "unbounded",
    "softplus2": "unbounded, N(0,2)",
    "mixed": "mixed",
}
SOME = {
    "kda-128k-h4": "KDA, 131,072 tokens, 4 heads",
    "kda-32k-h8": "KDA, 32,768 tokens, 8 heads",
    "kda-8k-h64": "KDA, 8,192 tokens, 64 heads",
    "gdn-32k-h8": "GDN, 32,768 tokens, 2/8 heads",
    "gdn-8k-h64": "GDN, 8,192 tokens, 16/64 heads",
    "gdn-4x8k-h64": "GDN, 4 x 8,192 tokens, 16/64 heads",
}
HOW_KNOWN = {"m": "measured", "p": "published", "p100": "published, H100"}


def elsewhere_words(text: str) -> tuple[float, str]:
    """The fastest figure of `1.253 m FlashKDA; ~1.8 cuLA`, and all of them in words, fastest first."""
    figures = []
    for part in text.split(";"):
        first, *rest = part.split()
        how = "extrapolated" if first.startswith("~") else HOW_KNOWN[rest.pop(0)]
        figures.append((float(first.lstrip("~")), " ".join(rest) or "the same", how))
    figures.sort()
    return figures[0][0], ", ".join(f"{ms:.2f} {name} ({how})" for ms, name, how in figures)


def model_gates(case: str, rows: dict) -> list[tuple[str, float]]:
    """Which gates of models a case was timed with, and its milliseconds with them."""
    return [(words, rows[f"{name}-{case}"]["ms"]) for name, words in MODEL_GATES.items() if f"{name}-{case}" in rows]


def some_table(results: dict) -> str:
    """A few cases beside the best known elsewhere, and how many of all are as fast as required."""
    rows, held = {row["case"]: row for row in results["rows"]}, targets()["cases"]
    head = ["case", "DeltaRelay, ms", "gates as models have them, ms", "segments", "without segments, ms"]
    lines = ["| " + " | ".join([*head, "best elsewhere, ms"]) + " |", "|---|--:|---|--:|--:|---|"]
    for case, words in SOME.items():
        if case not in rows or "elsewhere" not in held.get(case, {}):
            continue
        row = rows[case]
        best, elsewhere = elsewhere_words(held[case]["elsewhere"])
        modelled = model_gates(case, rows)
        slower = max([row["ms"], *(ms for _, ms in modelled)])
        ours = f"**{row['ms']:.2f}**" if slower < best else f"{row['ms']:.2f}"
        if f"weak-{case}" in rows:
            ours += f" ({rows[f'weak-{case}']['ms']:.2f} with weak gates)"
        others = ", ".join(f"{ms:.2f} {gates}" for gates, ms in modelled) or "-"
        unsplit = row["unsplit_ms"] if row.get("cut_sequences") else row["ms"]
        lines.append(f"| {words} | {ours} | {others} | {row['segments']} | {unsplit:.2f} | {elsewhere} |")
    required = [case for case in held if "required_ms" in held[case] and not case.startswith("portable-")]
    measured = [case for case in required if case in rows]
    enough = [case for case in measured if rows[case]["ms"] <= held[case]["required_ms"]]
    waiting = len(required) - len(measured)
    lines.append("")
    lines.append(f"{len(enough)} of {len(measured)} Hopper targets are met (commit {results['commit']}).")
    if waiting:
        lines[-1] += f" {waiting} more were not measured in this run."
    return "\n".join(lines) + "\n"


PACKAGES = {
    "flashinfer": "FlashInfer",
    "cudnn": "cuDNN-frontend",
    "fla": "FLA",
    "flash_kda": "FlashKDA",
    "cula": "cuLA",
}


def words_of_case(line: str) -> str:
    """`GDN, 4 x 8,192 tokens, 16/64 heads` of a case line with sequences of one length."""
    words = dict(word.split("=", 1) for word in line.split() if "=" in word)
    length, _, count = words["seqs"].partition("x")
    heads = words["hv"] if words["hqk"] == words["hv"] else f"{words['hqk']}/{words['hv']}"
    unbounded = line.startswith("kda") and not words["gate"].startswith("bounded")
    text = f"{line[:3].upper()}, {count or 1} x {int(length):,} tokens, {heads} heads"
    return text + (", unbounded gates" if unbounded else "")


def gates_of_case(line: str) -> str:
    """What the gates of a case line hold: of a fresh layer, of a trained one, or of benchmarks, which soon forget."""
    gate = next(word for word in line.split() if word.startswith("gate=")).removeprefix("gate=").split(":")
    if "init" in gate:
        return "as initialised" + (f", N(0,{gate[-1]})" if gate[-1].isdigit() else "")
    return "mixed" if "mixed" in gate else "forgetting"


def slower_rows(rows: list[dict]) -> list[dict]:
    """Of rows that differ only in what their gates hold, the one that takes this library longest."""
    slowest = {}
    for row in rows:
        words = words_of_case(row["line"])
        if row.get("peers") and ("ms" in row) and row["ms"] > slowest.get(words, {"ms": 0})["ms"]:
            slowest[words] = row
    return list(slowest.values())


def peers_table(results: dict) -> str:
    """Whole calls in milliseconds, a column for each package; the fastest of a row in bold, eager calls marked.

    Of the gates with which a shape was timed, the table shows those that take this library longest.
    """
    packages = results["packages"]
    lines = ["| | gates | DeltaRelay | " + " | ".join(f"{PACKAGES[name]} {packages[name]}" for name in packages) + " |"]
    lines.append("|---|---|" + "--:|" * (len(packages) + 1))
    marked = False
    for row in sorted(slower_rows(results["rows"]), key=lambda row: words_of_case(row["line"])):
        times = {"": row["ms"], **row["peers"]}
        cells = []
        for name in ("", *packages):
            cell = f"{times[name]:#.3g}" if name in times else "-"
            cell = f"**{cell}**" if times.get(name) == min(times.values()) else cell
            cells.append(cell + (" (1)" if name in row.get("eager", []) else ""))
            marked = marked or name in row.get("eager", [])
        lines.append(f"| {words_of_case(row['line'])} | {gates_of_case(row['line'])} | " + " | ".join(cells) + " |")
    commit = results.get("commit") and f"commit {results['commit']}"
    driver = results.get("driver") and f"driver {results['driver']}"
    known = [results["device"], driver, results.get("date", "")[:10], commit, results.get("note", "")]
    where = ", ".join(filter(None, known))
    lines += ["", f"Milliseconds of a whole call. {where}." + (" (1): not captured, timed eagerly." if marked else "")]
    return "\n".join(lines) + "\n"


def results_table(results: dict) -> str:
    if stage_tables.of_stages(results):
        known = targets()
        return stage_tables.tables(results, known["stages"] if results["device"] == known.get("device") else {})
    if on_gpu(results):
        return gpu_table(results)
    head = ["case", "threads", "segments", "ms", "10 to 90 %", "token-heads/s", "GFLOP/s", "of FMA peak"]
    head += ["vs unsplit", "error"]
    lines = [f"{results['cpu'] or results['device']}, {results['date']}, commit {results['commit']}.", ""]
    lines.append("| " + " | ".join(head) + " |")
    lines.append("|---|" + "--:|" * (len(head) - 1))
    for row in results["rows"]:
        cells = [
            f"`{row['case'] or row['line']}`",
            str(row.get("threads", "-")),
            str(row["segments"]),
            f"{row['ms']:.2f}",
            f"{row['ms_low']:.2f} to {row['ms_high']:.2f}",
            thousands(row["token_heads_per_s"]),
            f"{row['gflops']:.1f}",
            ratio(row),
            f"{row['unsplit_ms'] / row['ms']:.2f}x" if row.get("cut_sequences") else "-",
            f"{row['error']:.1e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def compare_table(results: dict, peers: dict) -> str:
    """Our rows of the peers' cases above theirs: same machine, same shapes, token-heads per second."""
    columns = peers["columns"]
    lines = ["| implementation | " + " | ".join(column["title"] for column in columns) + " |"]
    lines.append("|---|" + "--:|" * len(columns))
    rows = {row["case"]: row for row in results["rows"]}
    for ours in peers["ours"]:
        cells = []
        for column in columns:
            name = ours["cases"].get(column["key"])
            if name is not None and name not in rows:
                raise SystemExit(f"{peers['file']}: case '{name}' is not in the results")
            cells.append("**" + thousands(rows[name]["token_heads_per_s"]) + "**" if name else "-")
        lines.append(f"| {ours['implementation']} | " + " | ".join(cells) + " |")
        shares = [ratio(rows[name]) if (name := ours["cases"].get(column["key"])) else "-" for column in columns]
        lines.append(f"| {ours['share']} | " + " | ".join(shares) + " |")
    for peer in peers["rows"]:
        cells = [thousands(peer[column["key"]]) if peer.get(column["key"]) else "-" for column in columns]
        lines.append(f"| {peer['implementation']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{peers['note']}\n"


def load(name: str) -> dict:
    return {"file": name, **json.loads((ROOT / name).read_text(encoding="utf-8"))}


def section(kind: str, files: list[str]) -> str:
    if not (ROOT / files[0]).exists():
        return "Not measured yet; `scripts/bench_cpu.sh` writes this table.\n"
    if kind == "results":
        return results_table(load(files[0]))
    if kind == "compare":
        return compare_table(load(files[0]), load(files[1]))
    if kind == "some":
        return some_table(load(files[0]))
    if kind == "peers":
        return peers_table(load(files[0]))
    raise SystemExit(f"unknown kind of table '{kind}': expected results, some, peers or compare")


def regenerate(text: str) -> str:
    return SECTION.sub(lambda m: m[1] + section(m[2], m[3].split()) + m[5], text)


def main() -> int:
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        print(results_table(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
        return 0
    if len(sys.argv) == 3 and sys.argv[1] == "--short":
        print(short_table(json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))), end="")
        return 0
    if len(sys.argv) > 2 and sys.argv[1] == "--update":
        for name in sys.argv[2:]:
            document = pathlib.Path(name)
            document.write_text(regenerate(document.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
