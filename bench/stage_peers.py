#!/usr/bin/env python3
"""Times FLA's kernels for the stages beside ours, through the same signatures, and adds them to the rows of a file.

    bench/stage_peers.py <gpu>-stages.json [--only REGEX] [--seconds S]

Needs torch with a GPU, FLA, and this package (PYTHONPATH=python, DELTARELAY_LIBRARY=<libdeltarelay.so>); without one of
them it says so and leaves the file as it is. Both get the same tensors: sums of gates in base 2, and for the state pass
and for `recompute` what FLA's own chunk_kda_fwd_intra has made of them. FLA's time counts only where its results agree
with ours. How times are taken: bench/peers.py.
"""

import argparse
import json
import pathlib
import re
import sys

import peers

sys.path.insert(0, str(peers.ROOT / "scripts"))
import stage_tables  # noqa: E402

WIDTH = 128


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
    from fla.ops.utils import prepare_chunk_indices

    lengths = stage_tables.lengths_of(row)
    if "batch" in stage_tables.words_of(row):
        return len(lengths), lengths[0], {}
    offsets = torch.tensor([0, *lengths], device="cuda", dtype=torch.int64).cumsum(0)
    indices = prepare_chunk_indices(offsets, stage_tables.CHUNK)
    return 1, sum(lengths), {"cu_seqlens": offsets, "chunk_indices": indices}


def make_rows(torch, row: dict, shape: tuple[int, int], packed: dict, seed: int) -> dict:
    """q, k, v, beta and cumulated gates of the distributions of the case line."""
    from fla.ops.utils import chunk_local_cumsum

    generator = torch.Generator(device="cuda").manual_seed(seed)
    words = stage_tables.words_of(row)
    hqk, hv = int(words["hqk"]), int(words["hv"])

    def normal(*axes):
        return torch.randn(*shape, *axes, device="cuda", generator=generator)

    def uniform(low, high, *axes):
        return torch.rand(*axes, device="cuda", generator=generator) * (high - low) + low

    if words["gate"] == "init":
        bias = peers.inverse_softplus(torch, uniform(-6.907755, -2.302585, hv, WIDTH).exp())
        g = -uniform(1.0, 16.0, hv, 1) * torch.nn.functional.softplus(normal(hv, WIDTH) + bias)
    else:
        g = uniform(-5.0, 0.0, *shape, hv, WIDTH)
    q, k = (torch.nn.functional.normalize(normal(hqk, WIDTH), dim=-1).bfloat16() for _ in range(2))
    sums = chunk_local_cumsum(g, chunk_size=stage_tables.CHUNK, scale=1.4426950408889634, **packed)
    beta = uniform(0.0, 1.0, *shape, hv).bfloat16()
    return {"q": q, "k": k, "v": normal(hv, WIDTH).bfloat16(), "gk": sums, "beta": beta}


def arguments_of(kind: str, rows: dict, packed: dict, intra) -> dict:
    """Keyword arguments of both functions."""
    scale = WIDTH**-0.5
    if kind == "intra":
        return {**rows, "scale": scale, "chunk_size": stage_tables.CHUNK, **packed}
    w, u, _, kg, _, inverse = intra(**rows, scale=scale, chunk_size=stage_tables.CHUNK, **packed)
    if kind == "recompute":
        return {**{name: rows[name] for name in ("k", "v", "beta", "gk")}, "A": inverse, **packed}
    return {"k": kg, "w": w, "u": u, "gk": rows["gk"], "output_final_state": True, **packed}


def measure(torch, theirs: dict, ours: dict, row: dict, seconds: float) -> None:
    kind = kind_of(row)
    sequences, tokens, packed = lengths_for(torch, row)
    made, size = [], 0
    # As many sets of inputs as leave nothing in the cache.
    cache = peers.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
    while not made or (size < cache and len(made) < peers.MOST_SETS):
        rows = make_rows(torch, row, (sequences, tokens), packed, len(made) + 1)
        made.append(arguments_of(kind, rows, packed, theirs["intra"]))
        size += sum(value.nbytes for value in made[-1].values() if hasattr(value, "nbytes"))
    both = []
    for functions in (theirs, ours):
        both.append([lambda given=given, f=functions[kind]: f(**given) for given in made])
    found = [[value for value in calls[0]() if value is not None] for calls in both]
    errors = [peers.difference(torch, mine, other) for other, mine in zip(*found, strict=True)]
    if not all(error <= peers.AGREEMENT for error in errors):
        print(f"{row['case']}: FLA's results differ from ours by {max(errors):.2g}: no peer here")
        row.setdefault("disagrees", {})["fla"] = errors
        return
    times = [peers.time_calls(torch, calls, seconds) for calls in both]
    row["peers"]["fla"] = times[0][0]
    row.setdefault("beside_ms", []).append(times[1][0])
    if not times[0][1]:
        row["eager"] = ["fla"]
    print(f"{row['case']}: FLA {times[0][0]:.4f} ms, ours {times[1][0]:.4f} ms beside it, {row['ms']:.4f} before")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--only", metavar="REGEX", default=".")
    parser.add_argument("--seconds", type=float, default=0.2)
    arguments = parser.parse_args()
    peers.find_packages()
    try:
        torch, theirs, ours = modules()
    except ImportError as error:
        print(f"stage_peers: {error}: FLA's kernels are not timed")
        return 0
    if not torch.cuda.is_available():
        print("stage_peers: torch finds no GPU: FLA's kernels are not timed")
        return 0
    results = json.loads(arguments.results.read_text(encoding="utf-8"))
    with torch.inference_mode():
        for row in results["rows"]:
            if not re.search(arguments.only, row["case"]):
                continue
            try:
                measure(torch, theirs, ours, row, arguments.seconds)
            except Exception as error:  # any package may fail in its own way
                print(f"{row['case']}: failed: {type(error).__name__}: {error}")
                torch.cuda.synchronize()
            torch.cuda.empty_cache()
            arguments.results.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
