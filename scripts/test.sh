#!/usr/bin/env bash
# From a bare clone to tested: installs what is missing, builds with warnings as errors, runs every test and style
# check, then the tests of the Python package, then the suite again under AddressSanitizer + UBSan and under
# ThreadSanitizer. A second run builds only what changed.
#
#   scripts/test.sh            everything
#   scripts/test.sh ci         one of the suites (ci, python, asan, tsan), or several
#
# A CUDA toolkit is expected if nvcc or /usr/local/cuda exists, if CUDA_HOME, CUDA_PATH or CUDACXX is set, or if
# DELTARELAY_EXPECT_CUDA is 1 (0: not expected). If it is expected, GPU backends that cannot be built are an error;
# otherwise they are left out. Every kernel is compiled for one architecture and some for all, without optimisation
# where no GPU can run them. `cmake --preset release` compiles all for all.
set -euo pipefail
cd "$(dirname "$0")/.."
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(ci python asan tsan)
./scripts/setup.sh test
jobs=$(nproc)
logs=build/logs
mkdir -p "$logs"
# ccache then goes by the headers that the compiler lists and need not preprocess every file before compiling it: a
# fifth of the time of a CUDA file. Paths below this folder count as relative, so that the installation that suite
# python tries, from an unpacked archive, finds what suite ci has compiled.
export CCACHE_DEPEND=${CCACHE_DEPEND:-true} CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}

if ! command -v nvcc >/dev/null; then export PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin"; fi
expect_cuda=${DELTARELAY_EXPECT_CUDA:-}
if [ -z "$expect_cuda" ]; then
  expect_cuda=0
  if [ -n "${CUDA_HOME:-}${CUDA_PATH:-}${CUDACXX:-}" ] || [ -e /usr/local/cuda ] || command -v nvcc >/dev/null; then
    expect_cuda=1
  fi
fi

# ThreadSanitizer's shadow memory collides with widely randomised mappings; not every container may turn that off.
fixed_mappings=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_mappings=(setarch "$(uname -m)" -R); fi

# Sets $cpu to the processor seconds of all processes that have ended since this script began. `times` must not run in a
# subshell, or it would count that alone.
count_cpu() {
  times >"$logs/times"
  cpu=$(awk '{ for (i = 1; i <= 2; ++i) { split($i, t, "[ms]"); sum += 60 * t[1] + t[2] } }
    END { printf "%d", sum + 0.5 }' "$logs/times")
}

failed=()
summary=()
# Seconds and processor seconds of the suite at hand.
spent() {
  echo "(build $((built - started)) s, cpu $((built_cpu - started_cpu)) s;" \
    "tests $((SECONDS - built)) s, cpu $((cpu - built_cpu)) s)"
}

for suite in "${suites[@]}"; do
  started=$SECONDS
  count_cpu
  started_cpu=$cpu
  echo "== $suite: configure and build"
  preset=$suite
  targets=()
  if [ "$suite" = python ]; then preset=ci targets=(--target python_package); fi  # made of the same objects
  with=()
  if [ "$preset" = ci ] && [ "$expect_cuda" != 0 ]; then
    with=(-DDELTARELAY_CUDA=ON)  # sanitizers are for the host alone
    if nvidia-smi -L >/dev/null 2>&1; then with+=(-DDELTARELAY_CUDA_QUICK=OFF); fi
  fi
  configure=$logs/$suite.configure
  if ! { cmake --preset "$preset" "${with[@]}" >"$configure" 2>&1 || { cat "$configure"; false; }; } ||
    ! cmake --build --preset "$preset" -j "$jobs" "${targets[@]}"; then
    failed+=("$suite")
    summary+=("$suite: did not build")
    continue
  fi
  built=$SECONDS
  count_cpu
  built_cpu=$cpu
  echo "== $suite: test"
  if [ "$suite" = python ]; then
    ./scripts/test_python.sh || failed+=(python)
    count_cpu
    summary+=("python $(spent):" \
      "$(sed 's/^/  /' "$logs/python.summary" 2>/dev/null || true)")
    continue
  fi
  runner=()
  if [ "$suite" = tsan ]; then runner=("${fixed_mappings[@]}"); fi
  "${runner[@]}" ctest --preset "$suite" -j "$jobs" 2>&1 | tee "$logs/$suite.tests" || failed+=("$suite")
  count_cpu
  summary+=("$suite $(spent): $(grep -E 'tests? passed' "$logs/$suite.tests" || true)")
done

echo
count_cpu
echo "== summary, $SECONDS s, cpu $cpu s"
printf '%s\n' "${summary[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}; the output is in $logs, one test is repeated by: ctest --preset <suite> -R <name>"
  exit 1
fi
