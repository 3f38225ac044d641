#!/usr/bin/env bash
# The Python suite of scripts/test.sh: style, tests of the package, and an installation as users do it. Needs the build
# of suite ci.
#
# The tests run in build/python/venv on the objects of build/ci. The environment gets NumPy, pytest, ruff and mypy
# (PyPI), and torch, FLA and transformers: those of the machine's Python if it has them, else from PyPI.
# DELTARELAY_PYTHON names another Python than python3. On x86_64 torch takes 5.5 GB; it is installed if 12 GB are free,
# and never with DELTARELAY_TORCH=0. Without a network the tests run with what the machine has, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${DELTARELAY_PYTHON:-python3}
work=build/python
logs=build/logs
venv=$work/venv
mkdir -p "$work" "$logs"
rm -f "$logs/python.summary"
failed=()
say() { echo "$*" | tee -a "$logs/python.summary"; }

# ---- environment
if [ ! -x "$venv/bin/python" ]; then "$python" -m venv "$venv"; fi
packages=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
"$python" -c 'import site; print("\n".join(site.getsitepackages()))' >"$packages/machine.pth"
has() {
  "$venv/bin/python" - "$@" <<'EOF'
import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1:]))
EOF
}
fetch() {  # <what for> <requirement>...
  local what=$1
  shift
  if [ -z "${uv:-}" ]; then
    uv=("$venv/bin/python" -m pip)
    if has uv || "$venv/bin/python" -m pip install --quiet uv >>"$logs/python.install" 2>&1; then
      uv=("$venv/bin/python" -m uv pip)
    fi
  fi
  "${uv[@]}" install --quiet ${UV_OPTIONS:-} "$@" >>"$logs/python.install" 2>&1 ||
    echo "python: $what cannot be installed here (${*}); see $logs/python.install"
}
export VIRTUAL_ENV=$PWD/$venv
# Packages come without bytecode. Keep it for all processes that the tests start (importing torch, FLA and transformers
# takes half the time then), and keep it out of the folders of sources.
export PYTHONPYCACHEPREFIX=$PWD/$work/bytecode
unset PYTHONDONTWRITEBYTECODE
: >"$logs/python.install"
has numpy || fetch NumPy numpy
has pytest || fetch pytest pytest
has ruff || fetch ruff ruff
has mypy || fetch mypy mypy
has scikit_build_core || fetch scikit-build-core scikit-build-core
has matplotlib || fetch matplotlib matplotlib
has ml_dtypes || fetch ml_dtypes ml_dtypes  # bf16 of NumPy
if [ "${DELTARELAY_TORCH:-1}" != 0 ]; then
  if ! has torch; then
    free=$(df --output=avail -BG . | tail -1 | tr -dc 0-9)
    if [ "$(uname -m)" = x86_64 ] && [ "$free" -lt 12 ]; then
      echo "python: no torch, which needs 12 GB of disk here; $free GB are free"
    else
      began=$SECONDS
      fetch torch torch
      if has torch; then echo "python: torch was fetched in $((SECONDS - began)) s"; fi
    fi
  fi
  if has torch; then
    has fla || fetch FLA fla-core==0.6.0
    has transformers || fetch transformers transformers
  fi
fi
version() {
  "$venv/bin/python" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" 2>/dev/null ||
    echo none
}
say "python $("$venv/bin/python" -c 'import platform; print(platform.python_version())'), numpy $(version numpy)," \
  "torch $(version torch), fla $(version fla-core), transformers $(version transformers)," \
  "pytest $(version pytest), ruff $(version ruff)"

# ---- style
if has ruff; then
  "$venv/bin/python" -m ruff check --quiet python && "$venv/bin/python" -m ruff format --quiet --check python ||
    failed+=(style)
else
  say "no ruff: the style of python/ was not checked"
fi

# ---- the package with the objects of the build
rm -rf "$work/site"
cmake --install build/ci --component python --prefix "$work/site" >"$logs/python.site"
if has pytest; then
  began=$SECONDS
  PYTHONPATH=$PWD/$work/site "$venv/bin/python" -m pytest -q -ra python/tests 2>&1 |
    tee "$logs/python.tests" || failed+=(tests)
  say "tests: $(tail -1 "$logs/python.tests" | tr -d =), $((SECONDS - began)) s"
  # Print each reason for skipped tests once, with the number of tests.
  sed -n -E 's/^SKIPPED \[([0-9]+)\] [^ ]+ (.*)$/  not run: \1 \2/p' "$logs/python.tests" | sort | uniq |
    tee -a "$logs/python.summary"
else
  say "no pytest: the tests of python/ were not run"
  failed+=(tests)
fi

# ---- as users install it: a source archive, a wheel of that, a fresh environment
if has scikit_build_core; then
  began=$SECONDS
  if scripts/try_install.sh "$venv/bin/python" "$work/install" >"$logs/python.pip" 2>&1; then
    say "pip install from a source archive: passed, $((SECONDS - began)) s"
  else
    tail -40 "$logs/python.pip"
    say "pip install from a source archive: FAILED, the output is in $logs/python.pip"
    failed+=(install)
  fi
else
  say "no scikit-build-core: pip install was not tried"
fi
if [ ${#failed[@]} -gt 0 ]; then
  say "failed: ${failed[*]}"
  exit 1
fi
