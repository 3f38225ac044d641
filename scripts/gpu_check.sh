#!/usr/bin/env bash
# Runs all tests and measurements for a GPU on a host without network. Needs nvcc, a C++ compiler, CMake (3.24), Ninja
# or Make, Python, compute-sanitizer, and the sources that scripts/fetch_deps.sh left in .deps. Installs nothing.
#
#   scripts/gpu_check.sh <output folder> [quick|full|<stage>...]
#
#   quick    build tests bench                  the named targets, short timings
#   full     build tests random big sanitize cpu bench stages peers     (default) everything, also a sweep of segments
#
#   build      the library with CUDA, tools and tests
#   tools      the library and the tools only, for a quick benchmark
#   tests      every test that needs a GPU
#   big        tensors of more than 2^31 elements
#   random     seeded random cases, several at a time, for the GPU backends in turn
#   sanitize   memcheck, racecheck, initcheck and synccheck over gpu-sanitize.txt and gpu_portable-sanitize.txt
#              of tests/cases
#   cpu        the CPU tests and the CPU benchmark of this host
#   bench      the target tables of cuda-sm90 and of the portable kernels, each case checked before it is timed; writes
#              <gpu>.json and <gpu>.md, as in bench/results
#   stages     the tables of the stages alone (tests/cases/stage_tables.txt), each case checked before it is timed; with
#              FLA's kernels if torch and FLA can be imported; writes <gpu>-stages.json and <gpu>-stages.md
#   peers      public packages on the same cases, if they can be imported (also from .deps/python); adds to <gpu>.json
#   verify     tests/cases/gpu.txt and gpu_portable.txt with the command, one line per case (`tests` includes them)
#
# Stages run in the given order. Each writes its own log, and a short table comes last. A stage that fails does not stop
# the others, except the build. Environment:
#   DELTARELAY_COMMIT           commit of a copy without git history
#   DELTARELAY_ONLY             regular expression over the names of cases for bench and peers
#   DELTARELAY_MIN_TIME         seconds per timing
#   DELTARELAY_PEER_SECONDS     stage `stages`: no case of FLA's kernels is begun later (90)
#   DELTARELAY_BENCH_WORDS      further options of `deltarelay bench`, such as --sweep
#   DELTARELAY_RANDOM_CASES     number of random cases to run (20000)
#   DELTARELAY_RANDOM_BACKENDS  their backends (cuda-sm80,cuda-sm90)
#   DELTARELAY_RANDOM_SEED      their first seed (1)
set -euo pipefail
[ $# -ge 1 ] || { sed -n '/^#   /p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
case ${1:-full} in
  quick) stages=(build tests bench) mode=quick ;;
  full) stages=(build tests random big sanitize cpu bench stages peers) mode=full ;;
  *) stages=("$@") mode=stages ;;
esac
build=build/gpu-check
command="$build/bin/deltarelay"
commit=(${DELTARELAY_COMMIT:+--commit "$DELTARELAY_COMMIT"})
jobs=$(nproc)
forced="backend=cuda-sm90 device=cuda"
forced_portable="backend=cuda-sm80 device=cuda"

configure() {
  local generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then export PATH="$PATH:/usr/local/cuda/bin"; fi
  # Compile only for the GPU of this host.
  local here
  here=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .) || true
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DDELTARELAY_CUDA=ON \
    -DDELTARELAY_CUDA_ARCHITECTURES="${here:-90}-real"
}

build_targets() {  # <option of cmake --build>...
  if ! { configure && cmake --build "$build" -j "$jobs" "$@"; } >"$out/build.log" 2>&1; then
    grep -E 'error|FAILED|Error' "$out/build.log" | head -30
    tail -20 "$out/build.log"
    return 1
  fi
  { nvidia-smi || true; "$command" info; } >>"$out/build.log" 2>&1
}

stage_build() { build_targets; }
stage_tools() { build_targets --target deltarelay_command --target deltarelay_first_call; }

# Without a GPU, tests are skipped, which proves nothing. So one case must run first.
require_gpu() { "$command" verify gdn bf16 hv=1 seqs=64 backend=cuda-sm90 -q; }

run_ctest() {  # <label>
  local result=0
  ctest --test-dir "$build" --output-on-failure -L "^$1\$" --no-tests=error >>"$out/tests.log" 2>&1 || result=1
  grep -E '^\[  FAILED  \]|Failure$|why:' "$out/tests.log" | sort | uniq -c | sort -rn | head -40 || true
  grep -E 'tests passed|tests failed|\*\*\*' "$out/tests.log" | tail -15
  return $result
}

stage_tests() {
  : >"$out/tests.log"
  require_gpu && run_ctest gpu
}

stage_big() { require_gpu && run_ctest gpu-big; }

stage_verify() {
  local result=0
  "$command" verify tests/cases/gpu.txt tests/cases/gpu_portable.txt >"$out/verify.log" 2>&1 || result=1
  grep -A4 '^FAIL' "$out/verify.log" | head -60 || true
  tail -1 "$out/verify.log"
  return $result
}

# The last line counts cases that ran, failed and were declined; the lines before give reasons. A hanging kernel times
# out.
stage_random() {
  local result=0
  require_gpu || return 1
  timeout "${DELTARELAY_RANDOM_SECONDS:-900}" "$command" verify --random-cases "${DELTARELAY_RANDOM_CASES:-20000}" \
    --on "${DELTARELAY_RANDOM_BACKENDS:-cuda-sm80,cuda-sm90}" --seed "${DELTARELAY_RANDOM_SEED:-1}" --jobs "$jobs" \
    --skip-declined -q \
    >"$out/random.log" 2>&1 || result=$?
  grep -A4 '^FAIL' "$out/random.log" | head -60 || true
  grep '^declined' "$out/random.log" | sort -t' ' -k2 -rn | head -10 || true
  if [ $result -eq 124 ]; then echo "timeout: cases in flight did not end"; else tail -1 "$out/random.log"; fi
  return $result
}

find_sanitizer() {
  local place
  for place in "$(command -v compute-sanitizer || true)" /usr/local/cuda/bin/compute-sanitizer \
    /usr/local/cuda/compute-sanitizer/compute-sanitizer; do
    if [ -n "$place" ] && [ -x "$place" ]; then echo "$place"; return; fi
  done
  return 1
}

# Runs one tool over a file of cases, with its own log. Reports of racecheck alone are no failure: their kinds are read.
sanitize() {  # <tool> <name> <cases> [further words of `verify`]
  local tool=$1 log=$out/sanitize-$2-$1.log cases=$3 status=0 started=$SECONDS
  shift 3
  timeout "${DELTARELAY_SANITIZE_SECONDS:-300}" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 4000 \
    "$command" verify "$cases" "$@" >"$log" 2>&1 || status=$?
  printf '%-36s exit %d %4d s  %s\n' "$(basename "$log" .log)" $status $((SECONDS - started)) \
    "$(grep -E 'SUMMARY|passed,' "$log" | sed 's/^=* *//' | paste -sd';')"
  if [ $tool = racecheck ] && [ $status -eq 9 ] && grep -q ' passed, 0 failed' "$log"; then status=0; fi
  [ $status -eq 0 ] || echo "$log" >>"$work/failed"
}

# Runs `sanitize` beside others, one a core.
sanitize_beside() {
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  sanitize "$@" &
}

# Deals the cases of a file out over files <work>/<name>-00, ... in turn: neighbours are alike, and so are their times.
deal() {  # <name> <cases a file> <cases> [option of grep, and a pattern of cases]
  local name=$1 count=$2 lines=$work/$1-lines
  grep -vE '^(#|$)' "$3" | grep "${@:4}" >"$lines" || true
  count=$((($(wc -l <"$lines") + count - 1) / count))
  if [ $count -gt 0 ]; then split -d -n "r/$count" "$lines" "$work/$name-"; fi
  rm "$lines"
}

# Writes the machine code of all kernels into files <folder>/code-..., as read_races.py reads it. Files of different
# folders have the same name.
list_code() {  # <folder>
  find "$build/src" -name '*.cu.o' -print0 | xargs -0 -P "$jobs" -I{} sh -c \
    'cuobjdump -sass "$1" 2>/dev/null >"$2/code-$(echo "$1" | tr / -)"' _ {} "$1"
}

# Runs all tools at once, each list separately. Racecheck is by far the slowest, so it has small parts and starts first.
# It counts hazards up to a maximum and then no further (NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS raises that). A long
# row that is handed on may reach it, so such a case is a part by itself.
stage_sanitize() {
  local sanitizer list result=0 part tool work
  sanitizer=$(find_sanitizer) || { echo "compute-sanitizer was not found"; return 1; }
  work=$(mktemp -d)
  : >"$work/failed"
  rm -f "$out"/sanitize-*.log
  for list in gpu gpu_portable; do
    deal "race-$list" 4 "tests/cases/$list-sanitize.txt" -v '^relay'
    deal "race-$list-relay" 1 "tests/cases/$list-sanitize.txt" '^relay'
    deal "whole-$list" 24 "tests/cases/$list-sanitize.txt" .
    # Leave the workspace uninitialised, so that initcheck can find reads of unwritten memory. Relay cases are left out:
    # their marks may have any initial value (src/kernels/relay.h).
    deal "bare-$list" 24 "tests/cases/$list-sanitize.txt" -v '^relay'
  done
  for part in "$work"/race-*; do sanitize_beside racecheck "${part##*/race-}" "$part"; done
  for part in "$work"/whole-*; do
    for tool in memcheck synccheck; do sanitize_beside $tool "${part##*/whole-}" "$part"; done
  done
  for part in "$work"/bare-*; do sanitize_beside initcheck "${part##*/bare-}" "$part" --bare-workspace; done
  sanitize_beside initcheck gpu_relay tests/cases/gpu-sanitize.txt --only '^relay'
  wait
  if [ -s "$work/failed" ]; then result=1; fi
  if command -v cuobjdump >/dev/null; then
    list_code "$work"
    python3 scripts/read_races.py "$out"/sanitize-*-racecheck.log "$work"/code-* >"$out/sanitize-races.log" ||
      result=1
    tail -30 "$out/sanitize-races.log"
  else
    echo "cuobjdump was not found: kinds of races were not read"
    grep -lE 'RACECHECK SUMMARY: [1-9]' "$out"/sanitize-*-racecheck.log && result=1
  fi
  rm -rf "$work"
  return $result
}

stage_cpu() {
  local work result=0
  work=$(mktemp -d)
  DELTARELAY_BUILD_DIR=$build scripts/cpu_check.sh "$work" >"$out/cpu.log" 2>&1 || result=1
  cat "$work"/tests.log >>"$out/cpu.log" 2>/dev/null || true
  if [ -e "$work/bench.json" ]; then cp "$work/bench.json" "$out/cpu-bench.json"; fi
  rm -rf "$work"
  grep -E 'tests passed|tests failed|Failed|FAIL' "$out/cpu.log" | sort -u | tail -15
  return $result
}

# <gpu>.json, where <gpu> is the last word of the device name: NVIDIA H200 gives h200.
results_file() { find "$out" -maxdepth 1 -name '*.json' ! -name cpu-bench.json ! -name '*-stages.json' | head -1; }

write_table() {  # <results.json>
  local name
  name=$(basename "$1" .json)
  {
    echo "# GPU results: $name"
    echo
    echo "Written by \`scripts/gpu_check.sh\`; the case lines and plans are in [$name.json]($name.json)."
    echo
    python3 scripts/results_table.py "$1"
  } >"$out/$name.md"
}

# Times the cases of a file into a separate result file. Rows that pass are written even if others fail. A file without
# a matching case is skipped.
time_file() {  # <cases> <results> <names> <words to force> <option of deltarelay bench>...
  local cases=$1 results=$2 names=$3 words=$4
  shift 4
  sed -n 's/^\([^ #:]*\):.*/\1/p' "$cases" | grep -E "$names" >/dev/null || return 0
  "$command" bench "$cases" --only "$names" --with "$words" "$@" --json "$results" >>"$out/bench.log" 2>&1
}

stage_bench() {
  local result=0 more words=(--min-time "${DELTARELAY_MIN_TIME:-0.4}")
  local only=${DELTARELAY_ONLY:-'^(kda|gdn|softplus2?|init|mixed|weak|batch|fixed|checkpoints|fp32gates|log)-'}
  if [ "$mode" = full ]; then
    words=(--min-time "${DELTARELAY_MIN_TIME:-0.6}" --sweep --full-columns) only=${DELTARELAY_ONLY:-.}
  fi
  if [ "$mode" = quick ]; then words=(--min-time "${DELTARELAY_MIN_TIME:-0.2}"); fi
  read -ra more <<<"${DELTARELAY_BENCH_WORDS:-}"
  words+=("${more[@]}" "${commit[@]}")
  rm -f "$out"/bench-*.tmp
  : >"$out/bench.log"
  # Two processes: if one ends early, for example by a fault of a kernel, the other keeps its rows.
  time_file tests/cases/targets.txt "$out/bench-1.tmp" "$only" "$forced" "${words[@]}" || result=1
  time_file tests/cases/targets_portable.txt "$out/bench-2.tmp" "${DELTARELAY_ONLY:-.}" "$forced_portable" \
    "${words[@]}" || result=1
  cat "$out/bench.log"
  local rule
  for rule in kda gdn; do
    for _ in 1 2 3 4 5; do
      "$build/bin/deltarelay-first-call" "$build/libdeltarelay.so" "$rule" 2>>"$out/bench.log" || result=1
    done
  done >"$out/first.tmp"
  local name
  name=$(python3 - "$out" <<'PYTHON'
import json, pathlib, re, statistics, sys
out = pathlib.Path(sys.argv[1])
paths = [path for path in sorted(out.glob("bench-*.tmp")) if path.stat().st_size]
files = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
files = [file for file in files if file["rows"]]  # a file without rows does not name the GPU
if not files:
    sys.exit("bench: expected a case that passes, found none")
results = {**files[0], "rows": [row for file in files for row in file["rows"]]}
runs = [json.loads(line) for line in (out / "first.tmp").read_text(encoding="utf-8").splitlines() if line.strip()]
results["first_call"] = []
for rule in sorted({run["rule"] for run in runs}):
    mine = [run for run in runs if run["rule"] == rule]
    medians = {key: statistics.median(run[key] for run in mine) for key in mine[0] if key != "rule"}
    results["first_call"].append({"rule": rule, "runs": len(mine), **medians})
(out / "bench.tmp").write_text(json.dumps(results, indent=2), encoding="utf-8")
print(re.sub(r"[^a-z0-9]+", "-", results["device"].lower().removeprefix("nvidia ")).strip("-"))
PYTHON
  ) || return 1
  mv "$out/bench.tmp" "$out/$name.json"
  rm -f "$out/first.tmp" "$out"/bench-*.tmp
  write_table "$out/$name.json"
  grep 'First' "$out/$name.md" || true
  return $result
}

# State passes are timed as the planner cuts them, not cut, and as cuLA cuts them. FLA's kernels are compiled meanwhile
# and timed last; they add to the rows.
stage_stages() {
  local result=0 name compiling cases=tests/cases/stage_tables.txt only=${DELTARELAY_ONLY:-.}
  local words=(--min-time "${DELTARELAY_MIN_TIME:-0.1}" "${commit[@]}")
  local peers=(python3 bench/stage_peers.py --only "$only")
  local -x PYTHONPATH="$PWD/python:$PWD/.deps/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
  local -x DELTARELAY_LIBRARY="$PWD/$build/libdeltarelay.so" TRITON_CACHE_DIR="$out/triton-cache"
  "${peers[@]}" --compile >"$out/stages-compile.log" 2>&1 &
  compiling=$!
  echo "== stages" >>"$out/bench.log"
  : >"$out/stages-1.tmp" >"$out/stages-2.tmp"
  grep '^state-pass-' $cases >"$out/passes.tmp"
  grep -v '^state-pass-' $cases >"$out/others.tmp"
  time_file "$out/passes.tmp" "$out/stages-1.tmp" "$only" device=cuda "${words[@]}" --beside policy=cula-sm100 ||
    result=1
  time_file "$out/others.tmp" "$out/stages-2.tmp" "$only" device=cuda "${words[@]}" || result=1
  sed -n '/^== stages/,$p' "$out/bench.log"
  wait $compiling || true
  tail -3 "$out/stages-compile.log"
  name=$(python3 scripts/stage_tables.py "$out/stages-1.tmp" "$out/stages-2.tmp" "$out") || return 1
  rm -f "$out"/stages-[12].tmp "$out/passes.tmp" "$out/others.tmp"
  "${peers[@]}" "$out/$name.json" --stop-after "${DELTARELAY_PEER_SECONDS:-90}" || result=1
  rm -rf "$TRITON_CACHE_DIR"
  write_table "$out/$name.json"
  python3 scripts/results_table.py --short "$out/$name.json"
  return $result
}

stage_peers() {
  local results result=0
  results=$(results_file)
  # Results of an earlier run are enough: peers are timed beside our library, whose time is printed with theirs.
  if [ -z "$results" ] && [ -e bench/results/h200.json ]; then
    results=$out/h200.json && cp bench/results/h200.json "$results"
  fi
  [ -n "$results" ] || { echo "peers: no results to add to; run the stage bench before"; return 1; }
  echo "== peers" >>"$out/bench.log"
  PYTHONPATH="$PWD/.deps/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 python3 bench/peers.py "$results" \
    --library "$build/libdeltarelay.so" ${DELTARELAY_ONLY:+--only "$DELTARELAY_ONLY"} \
    >>"$out/bench.log" 2>&1 || result=1
  sed -n '/^== peers/,$p' "$out/bench.log"
  write_table "$results"
  return $result
}

summary=()
failed=0
for stage in "${stages[@]}"; do
  declare -F "stage_$stage" >/dev/null || {
    echo "gpu_check: expected quick, full or a stage of its list, found '$stage'" >&2
    exit 2
  }
done
for stage in "${stages[@]}"; do
  echo "== $stage"
  started=$SECONDS
  if "stage_$stage"; then verdict=ok; else verdict=FAILED failed=1; fi
  summary+=("$(printf '%-10s %-8s %4d s' "$stage" "$verdict" $((SECONDS - started)))")
  if [ "$stage" = build ] && [ $verdict = FAILED ]; then break; fi
done
echo
echo "== summary, $SECONDS s; logs in $out"
printf '%s\n' "${summary[@]}"
results=$(results_file)
if [ -n "$results" ]; then python3 scripts/results_table.py --short "$results" || true; fi
exit $failed
