#!/usr/bin/env python3
"""Checks the committed measurements.

    check_results.py            every bench/results/*.json

A file that does not parse, or that lacks its device, date, commit or a field of a row, is an error. Findings that can
only be fixed on the machine of the measurement are reported but are no errors: kernels that changed after the recorded
commit, cases of the target table that were not measured, figures that miss a requirement.
"""

import json
import pathlib
import re
import subprocess
import sys

import results_table
import stage_tables

ROOT = results_table.ROOT
FILE_FIELDS = {"device": str, "date": str, "commit": str, "driver": str, "cuda": str, "cpu": str, "rows": list}
ROW_FIELDS = {
    "case": str,
    "line": str,
    "rule": str,
    "backend": str,
    "segments": int,
    "ms": float,
    "ms_low": float,
    "ms_high": float,
    "host_us": float,
    "token_heads_per_s": float,
    "gflops": float,
    "gbytes_per_s": float,
    "error": float,
    "workspace_bytes": int,
    "plan": str,
    "unsplit_ms": float,
    "peers": dict,
}
MAY_BE_EMPTY = {"case", "driver", "cuda", "peers"}  # driver and cuda: on a CPU
CUDA_KERNELS = "src/kernels/cuda"


def wrong_fields(where: str, found: dict, fields: dict) -> list[str]:
    problems = []
    for name, kind in fields.items():
        value = found.get(name)
        kinds = (int, float) if kind is float else (kind,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            problems.append(f"{where}: {name}: expected a {kind.__name__}, found {value!r}")
        elif value in ("", [], {}) and name not in MAY_BE_EMPTY:
            problems.append(f"{where}: {name}: expected something, found nothing")
        elif isinstance(value, (int, float)) and not (0 <= value < float("inf")):
            problems.append(f"{where}: {name}: expected a number that is not negative, found {value}")
    return problems


def check_row(where: str, row: dict) -> list[str]:
    problems = wrong_fields(where, row, ROW_FIELDS)
    if problems:
        return problems
    if not 0 < row["ms_low"] <= row["ms"] <= row["ms_high"]:
        problems.append(
            f"{where}: expected 0 < ms_low <= ms <= ms_high, found {row['ms_low']}, {row['ms']}, {row['ms_high']}"
        )
    if not row["line"].startswith(row["rule"] + " "):
        problems.append(f"{where}: line: expected a case of {row['rule']}, found '{row['line']}'")
    for peer, ms in row["peers"].items():
        if not isinstance(ms, (int, float)) or ms <= 0:
            problems.append(f"{where}: peers.{peer}: expected milliseconds, found {ms!r}")
    return problems


def check_file(path: pathlib.Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        return [f"{name}: does not parse: {error}"]
    problems = wrong_fields(name, results, FILE_FIELDS)
    if problems:
        return problems
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", results["date"]):
        problems.append(f"{name}: date: expected a UTC time such as 2026-11-15T05:23:41Z, found '{results['date']}'")
    if not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", results["commit"]):
        problems.append(f"{name}: commit: expected a hash, found '{results['commit']}'")
    for number, row in enumerate(results["rows"]):
        where = f"{name}: row {number} ({row.get('case') or row.get('line')})"
        problems += check_row(where, row)
        if str(row.get("backend", "")).startswith("cuda") and not (results["driver"] and results["cuda"]):
            problems.append(f"{where}: ran on a GPU, but the file names no driver or no CUDA")
    return problems


def git(*arguments: str) -> str | None:
    """Output of git; None if git cannot answer (no history, unknown commit)."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def report_kernels(name: str, commit: str) -> list[str]:
    reports = []
    if commit.endswith("-dirty"):
        reports.append(f"{name}: was measured on a working tree with changes ({commit})")
    changed = git("diff", "--name-only", commit.removesuffix("-dirty"), "--", CUDA_KERNELS)
    if changed is None:
        reports.append(
            f"{name}: its commit {commit} is not known here, so whether kernels changed since cannot be said"
        )
    elif changed.strip():
        files = changed.split()
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        reports.append(f"{name}: kernels changed after its commit {commit}: {', '.join(files[:3])}{more}")
    return reports


def report_target(where: str, row: dict, target: dict, rows: dict) -> list[str]:
    other = target.get("per_flop_of")
    if other is not None and other not in rows:
        return [f"{where}: is held to the time per flop of {other}, which was not measured"]
    required = results_table.limits_of(target, row, rows).get("required", float("inf"))
    if row["ms"] <= required:
        return []
    if other is not None:
        ratio = results_table.per_flop(row, rows[other])
        return [
            f"{where}: {row['ms']:.4f} ms, {ratio:.2f} times the time per flop of {other}, required {target['at_most']}"
        ]
    return [f"{where}: {row['ms']:.4f} ms, required {required} ms"]


def report_targets(name: str, results: dict) -> list[str]:
    known = results_table.targets()
    if results["device"] != known.get("device"):
        return []
    if stage_tables.of_stages(results):
        return [f"{name}: {line}" for line in stage_tables.misses(results, known["stages"])]
    rows = {row["case"]: row for row in results["rows"]}
    reports = []
    missing = [case for case in known["cases"] if case not in rows]
    if missing:
        reports.append(
            f"{name}: {len(missing)} of {len(known['cases'])} targets were not measured: {', '.join(missing)}"
        )
    for case, target in known["cases"].items():
        if case in rows:
            reports += report_target(f"{name}: {case}", rows[case], target, rows)
    for case, row in rows.items():
        slower = row["ms"] - row["unsplit_ms"]
        if slower > max(0.02 * row["unsplit_ms"], 0.003):
            reports.append(f"{name}: {case}: auto {row['ms']:.3f} ms is slower than unsplit {row['unsplit_ms']:.3f} ms")
    for what, target in known.get("fixed", {}).items():
        field = "host_us" if what == "host_us" else "plan_us"
        for case in target.get("cases", []):
            if case in rows and rows[case][field] > target["required"]:
                reports.append(f"{name}: {case}: {field} {rows[case][field]:.1f}, required {target['required']}")
    limit = known.get("fixed", {}).get("first_call_ms", {}).get("required", float("inf"))
    for first in results.get("first_call", []):
        if first["first_call_ms"] > limit:
            reports.append(f"{name}: first {first['rule']} call: {first['first_call_ms']:.0f} ms, required {limit} ms")
    return reports


def report(path: pathlib.Path) -> list[str]:
    results = json.loads(path.read_text(encoding="utf-8"))
    if not results_table.on_gpu(results):
        return []
    name = path.relative_to(ROOT).as_posix()
    return report_kernels(name, results["commit"]) + report_targets(name, results)


def main() -> int:
    files = sorted((ROOT / "bench" / "results").glob("*.json"))
    problems = [problem for path in files for problem in check_file(path)]
    print("\n".join(problems) if problems else f"{len(files)} files of results are whole")
    if not problems:
        for line in [line for path in files for line in report(path)]:
            print(f"REPORT {line}")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
