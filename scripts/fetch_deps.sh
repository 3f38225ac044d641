#!/usr/bin/env bash
# Puts the sources of the dependencies into .deps/, to build on a host that has neither their packages nor a network.
# Runs on Debian or Ubuntu (apt), needs no root; what it leaves is the same for every architecture, about 6 MB.
#
#   scripts/fetch_deps.sh [--python] [folder]     default: .deps beside this repository's CMakeLists.txt
#
# --python also fetches what bench/peers.py times (PyPI): FLA, FlashInfer's GDN prefill with the CuTe DSL it is written
# in, and cuDNN-frontend's KDA kernel for Hopper, each cut down to the modules of those kernels. They are for the Python
# and processor of the GPU host (DELTARELAY_PEERS_PYTHON, 3.12; DELTARELAY_PEERS_PLATFORM, x86_64) and come twice: in
# <folder>/python, and packed for the way to a host without network, in parts of at most 40 MiB. There:
#   cat .deps/python.tar.xz.* | tar -xJ -C .deps
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=
if [ "${1:-}" = --python ]; then python=yes && shift; fi
target=${1:-$root/.deps}
# The versions that the tables of bench/ name.
peers=(fla-core==0.6.0 einops flashinfer-python==0.7.2 nvidia-cudnn-frontend==1.32.0 nvidia-cutlass-dsl==4.8.1
  nvidia-cutlass-dsl-libs-base==4.8.1 nvidia-cutlass-dsl-libs-core==4.8.1 nvidia-cutlass-dsl-libs-cu13==4.8.1
  apache-tvm-ffi==0.1.15.post2 cuda-bindings==13.0.3 cuda-pathfinder nvidia-ml-py packaging filelock)

# Empties __init__.py, which would import every operation of its package: modules that are asked for come alone.
bare_package() {  # <folder>...
  local folder
  for folder in "$@"; do echo "# Left bare by scripts/fetch_deps.sh." >"$folder/__init__.py"; done
}

# What GDN prefill (FlashInfer) and the KDA kernel of Hopper (cuDNN-frontend) import, and no more.
prune_python() {  # <folder>
  local all=$1 kept=$1/kept
  mkdir -p "$kept/flashinfer" "$kept/cudnn"
  (cd "$all/flashinfer" &&
    find gdn_kernels cute_dsl jit trace -name '*.py' -exec cp --parents -t "$kept/flashinfer" {} +)
  cp "$all"/flashinfer/*.py "$kept/flashinfer/"
  bare_package "$kept/flashinfer" "$kept/flashinfer/jit" "$kept/flashinfer/cute_dsl"
  (cd "$all" && cp --parents -t "$kept" cudnn/_device.py cudnn/frost/device.py cudnn/linear_attention/cake/compiler.py \
    cudnn/linear_attention/hopper/cuda_host.py cudnn/linear_attention/hopper/cuda_kernels/kda_fused_sm90.cu)
  bare_package "$kept/cudnn" "$kept/cudnn/frost" "$kept/cudnn/linear_attention" "$kept/cudnn/linear_attention/cake" \
    "$kept/cudnn/linear_attention/hopper"
  echo "_pybind_module = None  # the compiled half, which this kernel does not call" >>"$kept/cudnn/__init__.py"
  rm -rf "$all/flashinfer" "$all/cudnn" "$all/include" "$all/b12x"
  rm -f "$all"/build_backend.py "$all"/build_utils.py
  mv "$kept/flashinfer" "$kept/cudnn" "$all/"
  rmdir "$kept"
  # Sources, headers, other targets and a profiler that running kernels does not need.
  find "$all/cuda" \( -name '*.cpp' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' \) -delete
  find "$all/cuda/bindings" -name '*cufile*.so' -delete
  rm -rf "$all"/tvm_ffi/{3rdparty,include} "$all/nvidia_cutlass_dsl/cu13/lib/stubs"
  find "$all/nvidia_cutlass_dsl/dsl_packages/iket" -name '*.so' -size +1M -delete
}

fetch_python() {
  [ -n "$python" ] && [ ! -e "$target/python/complete" ] || return 0
  local wheels peer platforms=()
  local version=${DELTARELAY_PEERS_PYTHON:-3.12} machine=${DELTARELAY_PEERS_PLATFORM:-x86_64}
  wheels=$(mktemp -d)
  for peer in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${peer}_$machine"); done
  echo "fetching ${peers[*]} (wheels for Python $version on $machine)"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheels" --python-version "$version" \
    --implementation cp --abi "cp${version/./}" --abi abi3 --abi none "${platforms[@]}" --platform any "${peers[@]}"
  rm -rf "$target/python" "$target"/python.tar.xz*
  mkdir -p "$target/python"
  for peer in "$wheels"/*.whl; do python3 -m zipfile -e "$peer" "$target/python"; done
  prune_python "$target/python"
  (cd "$wheels" && ls) >"$target/python/complete"
  rm -rf "$wheels"
  XZ_OPT=${XZ_OPT:--T0 -6} tar -cJ -C "$target" --exclude=__pycache__ python |
    split -d -b 40m - "$target/python.tar.xz."
  echo "$target/python: $(du -sh "$target/python" | cut -f1), packed:" "$target"/python.tar.xz.*
  echo "from $(tr '\n' ' ' <"$target/python/complete")"
}

if [ -e "$target/complete" ]; then
  fetch_python
  echo "$target is complete already; remove it to fetch again"
  exit 0
fi
if ! command -v apt-get dpkg-deb tar >/dev/null; then
  echo "fetch_deps.sh: apt-get, dpkg-deb and tar are needed" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/parts" "$work/lists/partial" "$work/cache/archives/partial" "$work/fetched" "$work/unpacked"

# A package list of our own, with source packages too: the system's lists stay as they are.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -e "$file" ] || continue
  sed -n -E 's/^deb(-src)?[[:space:]]/deb /p; s/^deb[[:space:]]/deb-src /p' "$file" >>"$work/parts/all.list"
done
for file in /etc/apt/sources.list.d/*.sources; do
  [ -e "$file" ] || continue
  sed -E 's/^Types:.*/Types: deb deb-src/' "$file" >"$work/parts/$(basename "$file")"
done
apt=(apt-get -qq -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$work/parts"
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=$(id -un)")
echo "reading package lists"
"${apt[@]}" update || echo "some package lists could not be read; going on with the others" >&2

cd "$work/fetched"
echo "fetching googletest, CLI11, nlohmann-json (packages) and highway (source package)"
"${apt[@]}" download googletest libcli11-dev nlohmann-json3-dev
"${apt[@]}" source --download-only highway
for package in ./*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
mkdir "$work/highway"
tar -xf ./highway_*.orig.tar.* -C "$work/highway" --strip-components=1

rm -rf "$target"
mkdir -p "$target/googletest" "$target/highway/hwy/ops" "$target/cli11" "$target/nlohmann_json"
for part in googletest googlemock; do
  mkdir "$target/googletest/$part"
  cp -r "$work/unpacked/usr/src/googletest/$part"/{include,src} "$target/googletest/$part/"
done
cp "$work/highway"/hwy/*.h "$work/highway"/hwy/{aligned_allocator,per_target,targets}.cc "$target/highway/hwy/"
cp "$work/highway"/hwy/ops/*.h "$target/highway/hwy/ops/"
mkdir -p "$target/highway/hwy/contrib"
cp -r "$work/highway/hwy/contrib/math" "$target/highway/hwy/contrib/"
cp "$work/highway/LICENSE" "$target/highway/"
cp -r "$work/unpacked/usr/include/CLI" "$target/cli11/"
cp -r "$work/unpacked/usr/include/nlohmann" "$target/nlohmann_json/"
for file in googletest libcli11-dev nlohmann-json3-dev; do
  copyright="$work/unpacked/usr/share/doc/$file/copyright"
  [ -e "$copyright" ] && cp "$copyright" "$target/$file.copyright"
done
ls "$work/fetched" >"$target/complete"
echo "$target: $(du -sh "$target" | cut -f1), from $(tr '\n' ' ' <"$target/complete")"
fetch_python
