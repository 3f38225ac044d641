#!/usr/bin/env bash
# Checks that all sources are formatted by .clang-format; --fix formats them. Exit 77: clang-format 14 is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
# Results differ between versions, so only version 14 counts.
for tool in clang-format-14 clang-format; do
  if command -v "$tool" >/dev/null && "$tool" --version | grep -q 'version 14\.'; then found=$tool; break; fi
done
if [ -z "${found:-}" ]; then
  echo "clang-format 14 is not installed: formatting was not checked"
  exit 77
fi
mode=(--dry-run -Werror)
if [ "${1:-}" = --fix ]; then mode=(-i); fi
find src include tools tests bench examples python -type f \
  \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp' -o -name '*.inl' -o -name '*.cu' -o -name '*.cuh' \) \
  -print0 2>/dev/null | xargs -0 "$found" "${mode[@]}"
