#!/usr/bin/env python3
"""Tables of measured results, made from the files of bench/results and from nothing else.

    scripts/results_table.py <results.json>          the table of one file, as Markdown
    scripts/results_table.py --update <document>...  rewrite the generated sections of documents

A generated section stands between `<!-- table: results <file.json> -->` or
`<!-- table: compare <file.json> <peers.json> -->` and `<!-- end of table -->`.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTION = re.compile(r"(<!-- table: (\w+) ([^>]*?) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def thousands(value: float) -> str:
    return f"{value / 1000:,.0f}k"


def ratio(row: dict) -> str:
    peak = row.get("fma_peak_gflops")
    return f"{row['gflops'] / peak:.2f}" if peak else "-"


def results_table(results: dict) -> str:
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
    raise SystemExit(f"unknown kind of table '{kind}': expected results or compare")


def regenerate(text: str) -> str:
    return SECTION.sub(lambda m: m[1] + section(m[2], m[3].split()) + m[5], text)


def main() -> int:
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        print(results_table(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
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
