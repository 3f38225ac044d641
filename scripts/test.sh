#!/usr/bin/env bash
# From a bare clone to tested: installs what is missing, builds with warnings as errors, runs every test and style check,
# then the suite again under AddressSanitizer + UBSan and under ThreadSanitizer. A second run builds only what changed.
#
#   scripts/test.sh            everything
#   scripts/test.sh ci         one of the suites (ci, asan, tsan), or several
set -euo pipefail
cd "$(dirname "$0")/.."
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(ci asan tsan)
./scripts/setup.sh test
jobs=$(nproc)
logs=build/logs
mkdir -p "$logs"

# ThreadSanitizer's shadow memory collides with widely randomised mappings; not every container may turn that off.
fixed_mappings=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_mappings=(setarch "$(uname -m)" -R); fi

failed=()
summary=()
for suite in "${suites[@]}"; do
  started=$SECONDS
  echo "== $suite: configure and build"
  if ! { cmake --preset "$suite" >"$logs/$suite.configure" 2>&1 || { cat "$logs/$suite.configure"; false; }; } ||
    ! cmake --build --preset "$suite" -j "$jobs"; then
    failed+=("$suite")
    summary+=("$suite: did not build")
    continue
  fi
  built=$SECONDS
  echo "== $suite: test"
  runner=()
  if [ "$suite" = tsan ]; then runner=("${fixed_mappings[@]}"); fi
  "${runner[@]}" ctest --preset "$suite" -j "$jobs" 2>&1 | tee "$logs/$suite.tests" || failed+=("$suite")
  summary+=("$suite ($((built - started)) s build, $((SECONDS - built)) s tests): $(grep -E 'tests? passed' "$logs/$suite.tests" || true)")
done

echo
echo "== summary, $SECONDS s"
printf '%s\n' "${summary[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}; the output is in $logs, one test is repeated by: ctest --preset <suite> -R <name>"
  exit 1
fi
