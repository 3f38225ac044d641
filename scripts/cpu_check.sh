#!/usr/bin/env bash
# Runs the CPU tests and the CPU benchmark on a host without network or packages. Needs a compiler, CMake (3.24), Ninja
# or Make, Python, and the sources that scripts/fetch_deps.sh left in .deps. Installs nothing.
#
#   scripts/cpu_check.sh <output folder> [tests|bench]     default: both
#
# DELTARELAY_COMMIT names the commit of a copy without git history. DELTARELAY_BUILD_DIR is a configured build folder to
# use (scripts/gpu_check.sh has one); otherwise the library is built without CUDA in build/cpu-check. The output folder
# gets build.log, tests.log, cpu.txt and the results of the benchmark.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: scripts/cpu_check.sh <output folder> [tests|bench]" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
only=${2:-}
cd "$(dirname "$0")/.."
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
build=${DELTARELAY_BUILD_DIR:-build/cpu-check}
{
  if [ -z "${DELTARELAY_BUILD_DIR:-}" ]; then
    cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DDELTARELAY_CUDA=OFF
  fi
  cmake --build "$build" -j "$(nproc)"
} >"$out/build.log" 2>&1 || { tail -40 "$out/build.log"; exit 1; }
command="$build/bin/deltarelay"
{ lscpu || true; "$command" info; } >"$out/cpu.txt" 2>&1
tail -30 "$out/cpu.txt"

failed=0
if [ "$only" != bench ]; then
  ctest --test-dir "$build" --output-on-failure -LE '^(gpu|gpu-big)$' -j "$(nproc)" >"$out/tests.log" 2>&1 || failed=1
  tail -25 "$out/tests.log"
fi
if [ "$only" != tests ]; then
  "$command" bench tests/cases/cpu-bench.txt ${DELTARELAY_COMMIT:+--commit "$DELTARELAY_COMMIT"} \
    --json "$out/bench.json" || failed=1
  python3 scripts/results_table.py "$out/bench.json" >"$out/bench.md"
fi
exit $failed
