#!/usr/bin/env bash
# Installs the package as users do, without a network: a source archive, a wheel built from it by pip, a fresh virtual
# environment; then an editable installation of the unpacked archive in a second one.
#
#   scripts/try_install.sh <python> <folder>      a Python that has scikit-build-core, and where to do it
#
# CPU only, with the compiler and options of suite ci, so that ccache has most objects.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
mkdir -p "$2"
folder=$(realpath "$2")
root=$PWD
rm -rf "$folder"/*
# Paths below the root count as relative, and the archive has the same depth as this checkout.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
if [ -e build/ci/CMakeCache.txt ]; then
  CC=$(sed -n 's/^CMAKE_C_COMPILER:[^=]*=//p' build/ci/CMakeCache.txt)
  CXX=$(sed -n 's/^CMAKE_CXX_COMPILER:[^=]*=//p' build/ci/CMakeCache.txt)
  export CC CXX
fi

"$python" -c 'import scikit_build_core.build as build, sys; build.build_sdist(sys.argv[1])' "$folder"
tar -xzf "$folder"/deltarelay-*.tar.gz -C "$folder"
cd "$folder"/deltarelay-*/
"$python" -m pip wheel --verbose --no-cache-dir --no-index --no-build-isolation --no-deps --wheel-dir "$folder" . \
  -C build-dir=build/wheel \
  -C cmake.define.DELTARELAY_CUDA=OFF -C cmake.define.DELTARELAY_SYSTEM_DEPS=ON -C cmake.define.DELTARELAY_WERROR=ON
# What `pip install -e .` does first. The build folder is that of the wheel, so nothing is compiled twice.
"$python" - "$folder/editable" <<'END'
import sys
import scikit_build_core.build as build
names = ("CUDA", "OFF"), ("SYSTEM_DEPS", "ON"), ("WERROR", "ON")
options = {f"cmake.define.DELTARELAY_{name}": value for name, value in names}
build.build_editable(sys.argv[1], {"build-dir": "build/wheel", **options})
END
# Highway may be the machine's own, because this wheel stays here.
"$python" "$root/scripts/check_wheel.py" --allow libhwy.so.1 "$folder"/*.whl

"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-index --no-deps "$folder"/*.whl
cd "$folder"
venv/bin/python -c 'import deltarelay; print("imported", deltarelay.__file__)'
venv/bin/deltarelay info
venv/bin/python -m deltarelay verify "kda bf16 hv=2 dk=64 seqs=300,65 init final segments=2" -q

"$python" -m venv "$folder/editable-venv"
editable-venv/bin/pip install --quiet --no-index --no-deps editable/*.whl
editable-venv/bin/python -c 'import deltarelay as d; print("imported", d.__file__, "with", d.info()["library"])'
editable-venv/bin/deltarelay verify "kda bf16 hv=2 dk=64 seqs=300,65 init final segments=2" -q
rm -rf venv editable-venv editable deltarelay-*/
