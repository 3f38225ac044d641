#!/usr/bin/env bash
# Times variants of a kernel against the one in src, kernels only, in seconds: to try an idea before building the
# library. Needs a Hopper GPU and nvcc. Without the GPU it stops after compiling and shows registers and spills.
#
#   scripts/try_kernels.sh fused_gdn|fused_kda|fused_kda_gates|local|pass [<folder>...]
#
# A folder holds the files that differ, with their paths under src (<folder>/kernels/cuda/sm90/fused/row.cuh), and may
# hold `flags`, further options of nvcc. All variants are compiled at once and run in turn, twice. A line has, for each
# shape, the median and the smallest milliseconds of a launch; the clock under the power limit and the cycles, if a
# multiprocessor is free to measure them; and the hash and the sum of the outputs. Equal hashes mean equal bits. A sum
# that is far off is wrong. `local`, chunk-local of KDA, has errors against fp64 instead; `pass`, the state pass, both.
#
#   scripts/try_kernels.sh energy|beside
#
# Energy of instructions, products and copies (bench/alone/energy.cu). Mutual slowdown of products and instructions of
# different warps (bench/alone/beside.cu).
set -euo pipefail
case ${1:-} in
  fused_gdn | fused_kda | fused_kda_gates | local | pass | energy | beside) program=$1 ;;
  *) sed -n '/^#   /p' "$0" >&2; exit 2 ;;
esac
shift
root=$(cd "$(dirname "$0")/.." && pwd)
command -v nvcc >/dev/null || PATH="$PATH:/usr/local/cuda/bin"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=()
compile() {  # <name> <folder, or nothing>
  local flags=()
  if [ -n "$2" ] && [ -e "$2/flags" ]; then read -ra flags <"$2/flags"; fi
  nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a ${2:+-I"$2"} -I"$root/src" -I"$root/include" \
    --expt-relaxed-constexpr -Xptxas -v "${flags[@]}" "$root/bench/alone/$program.cu" -o "$work/$1" -ldl \
    >"$work/$1.log" 2>&1
}
compile src "" &
names+=(src)
for folder in "$@"; do
  [ -d "$folder" ] || { echo "try_kernels: expected a folder, found '$folder'" >&2; exit 2; }
  name=$(basename "$folder")
  compile "$name" "$(cd "$folder" && pwd)" &
  names+=("$name")
done
wait
failed=0
for name in "${names[@]}"; do
  if [ ! -x "$work/$name" ]; then echo "$name does not compile:" && grep -m 5 error "$work/$name.log" && failed=1; fi
  # Serialised products, and spills.
  grep -oE '\(C75[0-9]+\).{0,70}|[1-9][0-9]* bytes spill stores, [0-9]+ bytes spill loads' "$work/$name.log" |
    sed "s/^/$name: /" || true
done
if ! nvidia-smi >/dev/null 2>&1; then echo "no GPU here: compiled only" && exit $failed; fi
rounds=(1 2)
case $program in energy | beside) rounds=(1) ;; esac
for _ in "${rounds[@]}"; do
  for name in "${names[@]}"; do
    if [ -x "$work/$name" ]; then timeout 60 "$work/$name" "$name" || { echo "$name: exit status $?" && failed=1; }; fi
  done
done
exit $failed
