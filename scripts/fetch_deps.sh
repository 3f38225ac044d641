#!/usr/bin/env bash
# Puts the sources of the dependencies into .deps/, for building on a host that has neither their packages nor a network.
# Runs on Debian or Ubuntu (apt), needs no root; what it leaves is the same for every architecture, about 6 MB.
#
#   scripts/fetch_deps.sh [--python] [folder]     default: .deps beside this repository's CMakeLists.txt
#
# --python also fetches what bench/peers.py times, as far as it is pure Python (PyPI, another 6 MB): FLA's kernels in <folder>/python.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=
if [ "${1:-}" = --python ]; then python=yes && shift; fi
target=${1:-$root/.deps}
fetch_python() {
  [ -n "$python" ] && [ ! -e "$target/python/complete" ] || return 0
  local wheels
  wheels=$(mktemp -d)
  echo "fetching fla-core and einops (wheels)"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheels" fla-core einops
  rm -rf "$target/python"
  mkdir -p "$target/python"
  for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$target/python"; done
  (cd "$wheels" && ls) >"$target/python/complete"
  rm -rf "$wheels"
  echo "$target/python: $(du -sh "$target/python" | cut -f1), from $(tr '\n' ' ' <"$target/python/complete")"
}

if [ -e "$target/complete" ]; then
  fetch_python
  echo "$target is complete already; remove it to fetch again"
  exit 0
fi
command -v apt-get dpkg-deb tar >/dev/null || { echo "fetch_deps.sh: apt-get, dpkg-deb and tar are needed" >&2; exit 1; }

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
  cp -r "$work/unpacked/usr/src/googletest/$part/include" "$work/unpacked/usr/src/googletest/$part/src" "$target/googletest/$part/"
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
