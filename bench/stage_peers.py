#!/usr/bin/env python3
"""Times FLA's kernels for the stages beside ours, through the same signatures, and adds them to the rows of a file.

    bench/stage_peers.py <gpu>-stages.json [--only REGEX] [--seconds S] [--stop-after S]
    bench/stage_peers.py --compile [--only REGEX]

Needs torch with a GPU, FLA, and this package (PYTHONPATH=python, DELTARELAY_LIBRARY=<libdeltarelay.so>); without one of
them it says so and leaves the file as it is. Both get the same tensors: sums of gates in base 2, and for the state pass
and for `recompute` what our own chunk_kda_fwd_intra has made of them. FLA's time counts only where its results agree
with ours. How times are taken: bench/peers.py.

How FLA is tuned: by its own autotuner, among all its configurations, once for each of its keys. These have heads,
widths, the chunk, types, and whether sequences are packed, but no length. Rows of one key follow each other, and the
one nearest to USUAL_TOKENS comes first: on its tensors the autotuner measures. Each configuration is measured as
Triton does it, with the cache flushed between runs, for TUNE_MS instead of 125 ms; those within NEAR of the best are
then measured again for Triton's full time, and the best of these is taken. So the choice is the one that FLA makes,
and the time that counts is measured afterwards, like ours. What tuning took is printed at the end.

--compile compiles what FLA's autotuner will choose from, in many processes at once, into Triton's cache
(TRITON_CACHE_DIR), and measures nothing. One process at a time would take minutes. Then the autotuner only measures.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

import peers

sys.path.insert(0, str(peers.ROOT / "scripts"))
import stage_tables  # noqa: E402

WIDTH = 128
LOG2_E = 1.4426950408889634
CASES = peers.ROOT / "tests" / "cases" / "stage_tables.txt"
PARTS = 3  # processes that share the configurations of one call
COMPILE_SECONDS = 90
ENOUGH_RESERVED = 40 << 30
TUNE_MS = (2, 10)  # warm-up and measurement of one configuration
FULL_MS = (25, 100)  # Triton's own
NEAR = 1.05
USUAL_TOKENS = 16384


def modules():
    """(torch, FLA's functions, ours), by the names of the tables."""
    import torch
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h
    from fla.ops.kda.chunk_intra import chunk_kda_fwd_intra
    from fla.ops.kda.wy_fast import recompute_w_u_fwd

    from deltarelay.fla import _stages as ours

    theirs = {"intra": chunk_kda_fwd_intra, "recompute": recompute_w_u_fwd, "state-pass": chunk_gated_delta_rule_fwd_h}
    mine = {"intra": ours.chunk_kda_fwd_intra, "recompute": ours.recompute_w_u_fwd_kda}
    return torch, theirs, {**mine, "state-pass": ours.chunk_gated_delta_rule_fwd_h}


def kind_of(row: dict) -> str:
    if "state-pass" in row["line"]:
        return "state-pass"
    return "recompute" if "inverse" in stage_tables.words_of(row)["given"].split(",") else "intra"


def lengths_for(torch, row: dict) -> tuple[int, int, dict]:
    """Sequences and tokens of a tensor [B, T, ...], and FLA's arguments for packed ones."""
    lengths = stage_tables.lengths_of(row)
    if "batch" in stage_tables.words_of(row):
        return len(lengths), lengths[0], {}
    from fla.ops.utils import prepare_chunk_indices

    offsets = torch.tensor([0, *lengths], device="cuda", dtype=torch.int64).cumsum(0)
    indices = prepare_chunk_indices(offsets, stage_tables.CHUNK)
    return 1, sum(lengths), {"cu_seqlens": offsets, "chunk_indices": indices}


def gate_sums(torch, g, packed: dict):
    """Sums of log-decays inside each chunk, in base 2."""
    from deltarelay import stages

    return stages.chunk_local(
        "kda", g=g, wanted=("gate_sums",), chunk=stage_tables.CHUNK, sums_base_2=True,
        seq_offsets=packed.get("cu_seqlens"),
    ).gate_sums  # fmt: skip


def make_rows(torch, row: dict, shape: tuple[int, int], packed: dict, seed: int, device: str = "cuda") -> dict:
    """q, k, v, beta and cumulated gates of the distributions of the case line."""
    generator = torch.Generator(device=device).manual_seed(seed)
    words = stage_tables.words_of(row)
    hqk, hv = int(words["hqk"]), int(words["hv"])

    def normal(*axes):
        return torch.randn(*shape, *axes, device=device, generator=generator)

    def uniform(low, high, *axes):
        return torch.rand(*axes, device=device, generator=generator) * (high - low) + low

    if words["gate"] == "init":
        bias = peers.inverse_softplus(torch, uniform(-6.907755, -2.302585, hv, WIDTH).exp())
        g = -uniform(1.0, 16.0, hv, 1) * torch.nn.functional.softplus(normal(hv, WIDTH) + bias)
    else:
        g = uniform(-5.0, 0.0, *shape, hv, WIDTH)
    q, k = (torch.nn.functional.normalize(normal(hqk, WIDTH), dim=-1).bfloat16() for _ in range(2))
    beta = uniform(0.0, 1.0, *shape, hv).bfloat16()
    return {"q": q, "k": k, "v": normal(hv, WIDTH).bfloat16(), "gk": gate_sums(torch, g, packed), "beta": beta}


def arguments_of(kind: str, rows: dict, packed: dict, intra) -> dict:
    """Keyword arguments of both functions."""
    scale = WIDTH**-0.5
    if kind == "intra":
        return {**rows, "scale": scale, "chunk_size": stage_tables.CHUNK, **packed}
    w, u, _, kg, _, inverse = intra(**rows, scale=scale, chunk_size=stage_tables.CHUNK, **packed)
    if kind == "recompute":
        return {**{name: rows[name] for name in ("k", "v", "beta", "gk")}, "A": inverse, **packed}
    # Lengths that only the GPU knows are planned by their bounds.
    host = {"cu_seqlens_cpu": packed["cu_seqlens"].cpu()} if packed else {}
    return {"k": kg, "w": w, "u": u, "gk": rows["gk"], "output_final_state": True, **packed, **host}


def results_of(torch, row: dict, call) -> list:
    """Results of a call. Of scores and inverses what lies on and below the diagonal: FLA leaves the rest as it was."""
    place = torch.cat([torch.arange(length) for length in stage_tables.lengths_of(row)]) % stage_tables.CHUNK
    found = []
    for value in call():
        if value is None:
            continue
        if value.dim() == 4 and value.shape[-1] == stage_tables.CHUNK:
            lower = torch.arange(stage_tables.CHUNK)[None, :] <= place[:, None]
            lower = lower.to(value.device).reshape(*value.shape[:2], 1, stage_tables.CHUNK)
            value = torch.where(lower, value, 0.0)
        found.append(value)
    return found


def measure(torch, theirs: dict, ours: dict, row: dict, seconds: float) -> None:
    start, kind = time.monotonic(), kind_of(row)
    sequences, tokens, packed = lengths_for(torch, row)
    made, size = [], 0
    # As many sets of inputs as leave nothing in the cache.
    cache = peers.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
    while not made or (size < cache and len(made) < peers.MOST_SETS):
        rows = make_rows(torch, row, (sequences, tokens), packed, len(made) + 1)
        made.append(arguments_of(kind, rows, packed, ours["intra"]))
        size += sum(value.nbytes for value in made[-1].values() if hasattr(value, "nbytes"))
    both = []
    for functions in (theirs, ours):
        both.append([lambda given=given, f=functions[kind]: f(**given) for given in made])
    begin = time.monotonic()
    found = [results_of(torch, row, calls[0]) for calls in both]
    errors = [peers.difference(torch, mine, other) for other, mine in zip(*found, strict=True)]
    first = time.monotonic() - begin
    del found
    if not all(error <= peers.AGREEMENT for error in errors):
        print(f"{row['case']}: FLA's results differ from ours by {max(errors):.2g}: no peer here")
        row.setdefault("disagrees", {})["fla"] = errors
        return
    times = [peers.time_calls(torch, calls, seconds) for calls in both]
    row["peers"]["fla"] = times[0][0]
    row.setdefault("beside_ms", []).append(times[1][0])
    if not times[0][1]:
        row["eager"] = ["fla"]
    print(
        f"{row['case']}: FLA {times[0][0]:.4f} ms, ours {times[1][0]:.4f} beside it, {row['ms']:.4f} before, "
        f"agrees to {max(errors):.1e}, first calls {first:.1f} s of {time.monotonic() - start:.1f}"
    )


# ---- tuning ----------------------------------------------------------------------------------------------------------


class Tuning:
    """Makes Triton's autotuner measure all configurations briefly and the best ones again in full."""

    def __init__(self):
        import triton.testing
        from triton.runtime.autotuner import Autotuner

        self.measure = triton.testing.do_bench
        self.seconds, self.configs, self.keys = 0.0, 0, 0
        self.full = False
        whole_run = Autotuner.run

        def run(tuner, *args, **kwargs):
            begin, configs = time.monotonic(), self.configs
            result = whole_run(tuner, *args, **kwargs)
            if self.configs > configs:
                self.choose_again(tuner, args, kwargs)
                self.seconds += time.monotonic() - begin
                self.keys += 1
            return result

        Autotuner.run = run
        # Some versions set it in every tuner, others find it when they need it.
        Autotuner.do_bench = property(lambda _: self.bench, lambda *_: None)

    def bench(self, kernel_call, quantiles):
        self.configs += 1
        warmup, rep = FULL_MS if self.full else TUNE_MS
        return self.measure(kernel_call, warmup=warmup, rep=rep, quantiles=quantiles)

    def choose_again(self, tuner, args, kwargs) -> None:
        """Of the configurations that were about as fast as the best, the best by a full measurement."""
        timings = tuner.configs_timings
        near = near_best(timings)
        if len(near) < 2:
            return
        key = next(key for key, config in tuner.cache.items() if config is tuner.best_config)
        self.full, tuner.nargs = True, dict(zip(tuner.arg_names, args))
        try:
            again = {config: tuner._bench(*args, config=config, **kwargs) for config in near}
        finally:
            self.full, tuner.nargs = False, None
        tuner.cache[key] = tuner.best_config = min(again, key=again.get)

    def __str__(self) -> str:
        return f"FLA's autotuner chose for {self.keys} keys in {self.seconds:.0f} s, {self.configs} measurements"


def near_best(timings: dict) -> list:
    """Configurations whose median is within NEAR of the best one's. `timings`: of each, quantiles, the median first."""
    best = min(quantiles[0] for quantiles in timings.values())
    return [config for config, quantiles in timings.items() if quantiles[0] <= NEAR * best < math.inf]


# ---- compiling -------------------------------------------------------------------------------------------------------


def family_of(row: dict) -> tuple[str, str, bool]:
    """Cases of one family differ for the compiler in nothing."""
    words = stage_tables.words_of(row)
    return kind_of(row), words["hv"], "batch" in words


def in_order(rows: list[dict]) -> list[dict]:
    """Rows of one family after each other, the one that the autotuner measures on first."""

    def distance(row):
        return abs(math.log(sum(stage_tables.lengths_of(row)) / USUAL_TOKENS))

    return sorted(rows, key=lambda row: (family_of(row), distance(row)))


def smallest_of_families(rows: list[dict]) -> list[dict]:
    smallest = {}
    for row in rows:
        other = smallest.setdefault(family_of(row), row)
        if sum(stage_tables.lengths_of(row)) < sum(stage_tables.lengths_of(other)):
            smallest[family_of(row)] = row
    # What `intra` calls last is `recompute`; its configurations are shared among the processes of both.
    return list(smallest.values())


def compile_only(part: int) -> None:
    """Makes Triton's autotuner compile every PARTS-th configuration, measure none, and take the first."""
    from triton.runtime.autotuner import Autotuner

    def compiled(self, *args, config, **meta):
        index = self.configs.index(config)
        if index % PARTS == part:
            try:
                self.fn.run(*args, **{**meta, **config.all_kwargs(), "warmup": True})
            except Exception as error:  # the autotuner passes over it too
                print(f"{self.base_fn.__name__} {config}: {type(error).__name__}: {error}")
        return [float(index)] * 3

    Autotuner._bench = compiled


def compile_part(case: str, part: int) -> None:
    torch, theirs, ours = modules()
    compile_only(part)
    row = next(row for row in peers.read_cases(CASES) if row["case"] == case)
    sequences, tokens, packed = lengths_for(torch, row)
    with torch.inference_mode():
        rows = make_rows(torch, row, (sequences, tokens), packed, 1)
        theirs[kind_of(row)](**arguments_of(kind_of(row), rows, packed, ours["intra"]))
        torch.cuda.synchronize()


def compile_all(only: str) -> None:
    begin = time.monotonic()
    rows = [row for row in peers.read_cases(CASES) if re.search(only, row["case"])]
    running = []
    for row in smallest_of_families(rows):
        for part in range(PARTS):
            words = [sys.executable, __file__, "--compile-part", row["case"], str(part)]
            running.append((f"{row['case']} part {part}", subprocess.Popen(words)))
    for name, process in running:
        try:
            status = process.wait(timeout=max(1.0, begin + COMPILE_SECONDS - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            status = "too slow"
        if status != 0:
            print(f"stage_peers: compiling for {name}: {status}")
    print(f"stage_peers: {len(running)} processes compiled for {time.monotonic() - begin:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="?")
    parser.add_argument("--only", metavar="REGEX", default=".")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--stop-after", type=float, metavar="S", help="no case is begun later", default=float("inf"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--compile-part", nargs=2, metavar=("CASE", "PART"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    begin = time.monotonic()
    peers.find_packages()
    # Nothing chosen is kept on disk: processes that compile measure nothing, and brief measurements do not choose.
    os.environ["FLA_CACHE_RESULTS"] = "0"
    if arguments.compile_part:
        compile_part(arguments.compile_part[0], int(arguments.compile_part[1]))
        return 0
    try:
        torch, theirs, ours = modules()
    except ImportError as error:
        print(f"stage_peers: {error}: FLA's kernels are not timed")
        return 0
    if not torch.cuda.is_available():
        print("stage_peers: torch finds no GPU: FLA's kernels are not timed")
        return 0
    if arguments.compile:
        compile_all(arguments.only)
        return 0
    if arguments.results is None:
        parser.error("expected a file of results, or --compile")
    results = json.loads(arguments.results.read_text(encoding="utf-8"))
    rows = [row for row in results["rows"] if re.search(arguments.only, row["case"])]
    rows = in_order([row for row in rows if "fla" not in row["peers"]])
    tuning, left_out = Tuning(), []
    with torch.inference_mode():
        for row in rows:
            if time.monotonic() - begin > arguments.stop_after:
                left_out.append(row["case"])
                continue
            try:
                measure(torch, theirs, ours, row, arguments.seconds)
            except Exception as error:  # any package may fail in its own way
                print(f"{row['case']}: failed: {type(error).__name__}: {error}")
                torch.cuda.synchronize()
            if torch.cuda.memory_reserved() > ENOUGH_RESERVED:
                torch.cuda.empty_cache()  # takes longer than a call
            arguments.results.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"stage_peers: {tuning}")
    if left_out:
        names = " ".join(left_out)
        print(f"stage_peers: {arguments.stop_after:.0f} s are over, {len(left_out)} rows not begun: {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
