#!/usr/bin/env python3
"""Times public packages on the cases of a results file, in the same process as this library, and adds them to its rows.

    bench/peers.py <results.json> --library <libdeltarelay.so> [--only REGEX] [--seconds S]

Packages that cannot be imported are named and left out: fla (flash-linear-attention; scripts/fetch_deps.sh --python
puts it into .deps/python), flash_kda, flashinfer, cula. The time of a package counts only if its output agrees with
ours: a call that computes something else is no peer. Times are CUDA-graph replays over inputs that do not fit the L2
cache, like ours, or eager calls (marked in the log) if a package cannot be captured.
"""

import argparse
import importlib
import json
import re
import statistics
import sys
import time
import traceback

AGREEMENT = 3e-2  # rms of the difference over rms: far above rounding in bf16, far below a different formula
CACHE_MULTIPLE = 3
MOST_SETS = 32


# ---- cases -------------------------------------------------------------------------------------------------------


def parse(line: str) -> dict | None:
    """Parses a case line of the tables; None for the rest of the grammar."""
    words = line.split()
    case = {"rule": words[0], "dtype": words[1], "flags": {w for w in words if "=" not in w}}
    case.update(word.split("=", 1) for word in words if "=" in word)
    lengths = []
    for item in case.get("seqs", "").split(","):
        length, _, times = item.partition("x")
        lengths += [int(length)] * int(times or 1) if length else []
    case["lengths"] = lengths
    gate = case.get("gate", "")
    case["lower_bound"] = float(gate.split(":")[1]) if gate.startswith("bounded") else None
    known = case["dtype"] == "bf16" and lengths and {"init", "final", "l2norm"} <= case["flags"]
    known = known and (case["lower_bound"] is not None if case["rule"] == "kda" else gate.startswith("log:-5,0"))
    return case if known else None


def make_inputs(torch, case: dict, seed: int) -> dict:
    """Fresh values from the distributions that tools/check uses."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    tokens, hqk, hv = sum(case["lengths"]), int(case["hqk"]), int(case["hv"])

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype, generator=generator)

    def uniform(low, high, *shape):
        return torch.rand(*shape, device="cuda", generator=generator) * (high - low) + low

    x = {"q": normal(tokens, hqk, 128), "k": normal(tokens, hqk, 128), "v": normal(tokens, hv, 128)}
    if case["rule"] == "kda":
        x["g"], x["beta"] = normal(tokens, hv, 128), normal(tokens, hv)
        x["a_log"] = uniform(-3.0, 2.0, hv)
        x["dt_bias"] = normal(hv, 128, dtype=torch.float32)
    else:
        x["g"], x["beta"] = uniform(-5.0, 0.0, tokens, hv), uniform(0.0, 1.0, tokens, hv)
    x["initial"] = normal(len(case["lengths"]), hv, 128, 128, dtype=torch.float32)  # [N, HV, DV, DK]
    x["final"] = torch.empty_like(x["initial"])
    x["o"] = torch.full_like(x["v"], float("nan"))
    offsets = [0]
    for length in case["lengths"]:
        offsets.append(offsets[-1] + length)
    x["offsets_host"] = offsets
    x["offsets"] = torch.tensor(offsets, device="cuda", dtype=torch.int64)
    x["offsets_cpu"] = torch.tensor(offsets, dtype=torch.int64)
    return x


# ---- packages: each takes (torch, case, inputs) and returns a call, or None if it does not serve the case ---------


def fla(torch, case, x):
    ops = importlib.import_module("fla.ops.kda" if case["rule"] == "kda" else "fla.ops.gated_delta_rule")
    common = dict(
        initial_state=x["initial"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        state_v_first=True,
        cu_seqlens=x["offsets"],
        cu_seqlens_cpu=x["offsets_cpu"],
    )
    batch = {name: x[name].unsqueeze(0) for name in ("q", "k", "v", "g", "beta")}
    if case["rule"] == "kda":
        more = dict(
            A_log=x["a_log"],
            dt_bias=x["dt_bias"].reshape(-1),
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=True,
            lower_bound=case["lower_bound"],
        )
        return lambda: ops.chunk_kda(**batch, **common, **more)[0][0]
    return lambda: ops.chunk_gated_delta_rule(**batch, **common)[0][0]


def flash_kda(torch, case, x):
    package = importlib.import_module("flash_kda")
    if case["rule"] != "kda" or case["hqk"] != case["hv"]:
        return None
    batch = [x[name].unsqueeze(0) for name in ("q", "k", "v", "g", "beta")]
    out, final = torch.empty_like(batch[2]), torch.empty_like(x["initial"])

    def call():
        package.fwd(
            *batch,
            128**-0.5,
            out,
            A_log=x["a_log"],
            dt_bias=x["dt_bias"],
            lower_bound=case["lower_bound"],
            initial_state=x["initial"],
            final_state=final,
            cu_seqlens=x["offsets"],
        )
        return out[0]

    return call


def flashinfer(torch, case, x):
    package = importlib.import_module("flashinfer.gdn_prefill")
    if case["rule"] != "gdn":
        return None
    # It takes decays and normalised keys; computing them is not part of its time.
    decay = x["g"].exp()
    q, k = (torch.nn.functional.normalize(x[name].float(), dim=-1).to(x[name].dtype) for name in ("q", "k"))
    out, final = torch.empty_like(x["v"]), torch.empty_like(x["initial"])

    def call():
        package.chunk_gated_delta_rule(
            q, k, x["v"], g=decay, beta=x["beta"], initial_state=x["initial"], output_final_state=True,
            cu_seqlens=x["offsets"], output=out, output_state=final,
        )  # fmt: skip
        return out

    return call


def cula(torch, case, x):
    package = importlib.import_module("cula.kda")
    if case["rule"] != "kda" or case["hqk"] != case["hv"]:
        return None
    batch = {name: x[name].unsqueeze(0) for name in ("q", "k", "v", "g", "beta")}
    offsets = x["offsets"].to(torch.int32)
    return lambda: package.flashkda_prefill(
        **batch,
        scale=128**-0.5,
        A_log=x["a_log"],
        dt_bias=x["dt_bias"].reshape(-1),
        initial_state=x["initial"],
        output_final_state=True,
        cu_seqlens=offsets,
        use_gate_in_kernel=True,
        safe_gate=True,
        lower_bound=case["lower_bound"],
    )[0][0]


PACKAGES = {"fla": fla, "flash_kda": flash_kda, "flashinfer": flashinfer, "cula": cula}


# ---- time --------------------------------------------------------------------------------------------------------


def capture(torch, call):
    """A replay of the call, or None if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:  # packages refuse in different ways
        print(f"    not captured: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        torch.cuda.synchronize()
        return None
    return graph


def time_calls(torch, calls: list, seconds: float) -> tuple[float, bool]:
    """Median milliseconds of one call, calls in turn, and whether they were graph replays."""
    for call in calls:
        for _ in range(3):  # autotuning and workspaces
            call()
    torch.cuda.synchronize()
    graphs = [capture(torch, call) for call in calls]
    captured = all(graph is not None for graph in graphs)
    turns = [graph.replay for graph in graphs] if captured else calls
    times, begin, i = [], time.monotonic(), 0
    while time.monotonic() - begin < seconds or len(times) < 10:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(17)]
        torch.cuda._sleep(2_000_000)  # about a millisecond, so that the host gets ahead
        marks[0].record()
        for mark in marks[1:]:
            turns[i % len(turns)]()
            mark.record()
            i += 1
        torch.cuda.synchronize()
        times += [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    return statistics.median(times), captured


def difference(torch, a, b) -> float:
    a, b = a.float(), b.float()
    return ((a - b).square().mean().sqrt() / b.square().mean().sqrt()).item()


def importable() -> dict:
    found = {}
    for name, adapter in PACKAGES.items():
        try:
            package = importlib.import_module(name)
            found[name] = adapter
            print(f"{name} {getattr(package, '__version__', '')}: timed")
        except Exception as error:
            print(f"{name}: cannot be imported ({type(error).__name__}: {error}), left out")
    return found


def measure(torch, library, packages: dict, row: dict, seconds: float) -> None:
    case = parse(row["line"])
    if case is None:
        return
    one = make_inputs(torch, case, 1)
    size = sum(t.numel() * t.element_size() for t in one.values() if hasattr(t, "numel"))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(1, min(MOST_SETS, -(-CACHE_MULTIPLE * cache // size)))
    sets = [one] + [make_inputs(torch, case, 2 + i) for i in range(count - 1)]
    for other in sets[1:]:  # FLA caches lengths by the identity of their tensor, and only a few
        other["offsets"], other["offsets_cpu"] = one["offsets"], one["offsets_cpu"]
    ours = [library.forward(case["rule"], x, x["offsets_host"], case["lower_bound"]) for x in sets]
    expected = ours[0]().clone()
    ms, _ = time_calls(torch, ours, seconds)
    print(f"{row['case']}: ours {ms:.4f} ms in this process, {row['ms']:.4f} in the results; {count} input sets")
    for name, adapter in packages.items():
        try:
            calls = [adapter(torch, case, x) for x in sets]
            if calls[0] is None:
                continue
            error = difference(torch, calls[0](), expected)
            if not error <= AGREEMENT:
                print(f"  {name}: its output differs from ours by {error:.2g}: not a peer on this case")
                continue
            ms, captured = time_calls(torch, calls, seconds)
            row.setdefault("peers", {})[name] = ms
            print(f"  {name}: {ms:.4f} ms ({'graph' if captured else 'eager'}), agrees to {error:.1e}")
        except Exception as error:
            print(f"  {name}: failed: {type(error).__name__}: {error}")
            traceback.print_exc(limit=3, file=sys.stdout)
            torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--library", required=True)
    parser.add_argument("--only", default="^(kda|gdn)-", metavar="REGEX")
    parser.add_argument("--seconds", type=float, default=0.3)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"torch: cannot be imported ({error}), and every package needs it: the results stay as they are")
        return 0
    packages = importable()
    if not packages:
        print("no package to time: the results stay as they are")
        return 0
    if not torch.cuda.is_available():
        print("torch finds no GPU: the results stay as they are")
        return 1
    from deltarelay_library import Library

    library = Library(arguments.library)
    with open(arguments.results, encoding="utf-8") as file:
        results = json.load(file)
    with torch.inference_mode():
        for row in results["rows"]:
            if re.search(arguments.only, row["case"] or row["line"]):
                measure(torch, library, packages, row, arguments.seconds)
                torch.cuda.empty_cache()
                # Written after each case, so that a run that ends early keeps its results.
                with open(arguments.results, "w", encoding="utf-8") as file:
                    json.dump(results, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
