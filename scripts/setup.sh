#!/usr/bin/env bash
# Installs what a build needs, on Debian 12 or Ubuntu 24.04 and later. Does nothing if everything is installed.
#
#   scripts/setup.sh build     compiler, CMake, Ninja, ccache, Highway, CLI11, nlohmann-json
#   scripts/setup.sh test      the same, with GoogleTest, the style checkers and the build tools of the Python package
set -euo pipefail
build=(g++ cmake ninja-build ccache pkg-config libhwy-dev libcli11-dev nlohmann-json3-dev python3 ca-certificates)
tests=(git make libgtest-dev libgmock-dev python3-dev python3-venv)
# Formatting depends on the version. If version 14 is not available, the style checks report that and are skipped.
style=(clang-format-14 clang-tidy-14)

case ${1:-} in
  build) wanted=("${build[@]}") optional=() ;;
  test) wanted=("${build[@]}" "${tests[@]}") optional=("${style[@]}") ;;
  *) echo "usage: scripts/setup.sh build|test" >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "setup: no apt-get here; the build needs the equivalents of: ${wanted[*]}" >&2
  exit 0
fi
installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing=()
for package in "${wanted[@]}"; do installed "$package" || missing+=("$package"); done
missing_optional=()
for package in "${optional[@]}"; do installed "$package" || missing_optional+=("$package"); done
if [ ${#missing[@]} -eq 0 ] && [ ${#missing_optional[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "setup: to install ${missing[*]} ${missing_optional[*]} run this as root" >&2
    exit 1
  }
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
echo "setup: installing ${missing[*]} ${missing_optional[*]}"
"${apt[@]}" update || [ ${#missing[@]} -eq 0 ]
if [ ${#missing[@]} -gt 0 ]; then "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null; fi
for package in "${missing_optional[@]}"; do
  "${apt[@]}" install -y --no-install-recommends "$package" >/dev/null || echo "setup: $package cannot be had here" >&2
done
