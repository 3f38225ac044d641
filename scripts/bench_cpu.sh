#!/usr/bin/env bash
# Measures this machine's CPU with the cases of tests/cases/cpu-bench.txt. Each is checked against the reference before
# it is timed.
#
#   scripts/bench_cpu.sh [folder]     default: bench/results; writes <cpu>.json and <cpu>.md
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-bench/results}
./scripts/setup.sh build
cmake --preset release -B build/release-cpu -DDELTARELAY_CUDA=OFF >/dev/null  # GPU kernels would take long to compile
cmake --build build/release-cpu
mkdir -p "$folder"
measured=$(mktemp)
trap 'rm -f "$measured"' EXIT
build/release-cpu/bin/deltarelay bench tests/cases/cpu-bench.txt --json "$measured"

name=$(python3 - "$measured" <<'PYTHON'
import json, re, sys
results = json.load(open(sys.argv[1], encoding="utf-8"))
print(re.sub(r"[^a-z0-9]+", "-", (results["cpu"] or results["device"]).lower()).strip("-"))
PYTHON
)
cp "$measured" "$folder/$name.json"
{
  echo "# CPU results: $name"
  echo
  echo "Written by \`scripts/bench_cpu.sh\`; the case lines and plans are in [$name.json]($name.json)."
  echo
  python3 scripts/results_table.py "$folder/$name.json"
} >"$folder/$name.md"
if [ "$folder" = bench/results ]; then python3 scripts/results_table.py --update bench/README.md; fi
echo "written: $folder/$name.json and $folder/$name.md"
