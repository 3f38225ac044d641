#!/usr/bin/env bash
# The main use on this machine, from a bare clone: plans, runs and verifies a KDA forward over one long sequence with
# one head, and shows the gain of threads, value tiles and segments. Installs what it needs (apt), then takes a minute
# or two.
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/setup.sh build
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
if [ ! -t 1 ]; then say() { printf '\n== %s\n' "$*"; }; fi

say "build"
cmake --preset release -B build/release-cpu -DDELTARELAY_CUDA=OFF >/dev/null  # GPU kernels would take long to compile
cmake --build build/release-cpu
command=build/release-cpu/bin/deltarelay
pictures=build/demo
mkdir -p "$pictures"
threads=$(nproc)
[ "$threads" -gt 1 ] || threads=2
case="kda fp32 hv=1 dk=128 dv=128 seqs=32768 init final"

say "this machine"
$command info

say "how one sequence of 32768 tokens with one head would be done here"
$command plan $case --svg "$pictures/plan-here.svg"

say "the same in $threads segments, and on an H200 that need not be here"
$command plan $case segments="$threads" threads="$threads" --svg "$pictures/plan-segments.svg" >/dev/null
$command plan kda bf16 hv=4 dk=128 dv=128 seqs=131072 device=h200 --svg "$pictures/plan-h200.svg"

say "is it right? whole and in segments, against the definition in double precision"
$command verify "$case" "$case segments=$threads" "$case segments=4 threads=$threads"

say "what one sequence with one head gains from more threads"
$command bench "one-thread: $case segments=off threads=1" "value-tiles: $case segments=off threads=$threads" \
  "segments: $case segments=$((threads + 1)) threads=$threads" "planned: $case threads=$threads" \
  --json "$pictures/bench.json"
python3 - "$pictures/bench.json" <<'PYTHON'
import json, sys
rows = {row["case"]: row for row in json.load(open(sys.argv[1], encoding="utf-8"))["rows"]}
words = {"value-tiles": "value columns spread over {threads} threads",
         "planned": "the planner's choice for {threads} threads",
         "segments": "{segments} segments on {threads} threads (a middle segment is walked twice)"}
for name, text in words.items():
    gain = rows["one-thread"]["ms"] / rows[name]["ms"]
    print(f"{gain:5.2f}x one thread: {text.format(**rows[name])}")
PYTHON

say "where to look next"
cat <<TEXT
pictures of the plans      $pictures/plan-here.svg, plan-segments.svg, plan-h200.svg
why this backend           $command explain $case
every case word            docs/cases.md
one call in C++            README.md; the contract is include/deltarelay/deltarelay.h
how it works               docs/data-flow.md, docs/math.md, docs/planner.md
TEXT
