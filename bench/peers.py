#!/usr/bin/env python3
"""Times public packages and this library on the same cases, on one GPU and in one process.

    bench/peers.py <cases.txt> --library <libdeltarelay.so> --json <peers.json>     the cases of a file
    bench/peers.py <results.json> --library <libdeltarelay.so>                      adds times to the rows of a file

Further options: --only REGEX (names of cases), --packages NAME,NAME, --seconds S (of each timing), --stop-after S (no
case is started later than that).

On a GPU host without network, in a copy of this repository with what scripts/fetch_deps.sh --python left in .deps:

    cat .deps/python.tar.xz.* | tar -xJ -C .deps
    scripts/gpu_check.sh /tmp/out tools
    python3 bench/peers.py tests/cases/targets.txt --library build/gpu-check/libdeltarelay.so \\
        --json /tmp/out/peers-h200.json --stop-after 400

Packages: fla (FLA's Triton kernels), flashinfer (GDN prefill, CuTe DSL), cudnn (cuDNN-frontend's KDA kernel for Hopper,
through its own host code), flash_kda, cula. They are looked for in .deps/python first. A package that cannot be
imported is named with the reason and left out. A package that fails on a case is named with a traceback, and the next
one is timed.

What is compared. Calls are packed (cu_seqlens), have fp32 states in and out, and normalise q and k. The time of a
package counts only where its output and its final states agree with ours. What a package does not take in its call is
done before and is no part of its time: decays instead of their logarithms (flashinfer); gates and beta in fp32 and,
where gates have no bound, log-decays (cudnn). Times are medians of CUDA-graph replays over sets of inputs that together
do not fit the L2 cache. A call that cannot be captured is timed eagerly, queued behind a pause so that the host is
ahead, and marked so.
"""

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
AGREEMENT = 3e-2  # rms of the difference over rms: far above rounding in bf16, far below another formula
CACHE_MULTIPLE = 3
MOST_SETS = 32


# ---- cases -----------------------------------------------------------------------------------------------------------


def parse_gate(rule: str, words: str) -> dict | None:
    """{form, profile, spread, lower_bound} of a word gate=...; None for forms that no peer takes."""
    first = words.split(":")[0]
    if first in ("init", "mixed"):
        words = f"softplus:{words}" if rule == "kda" and first == "init" else f"log:{words}"
    found = re.fullmatch(r"(log|softplus|bounded)(?::(-[\d.]+(?:,[\d.]+)?))?(?::(init|mixed)(?::([\d.]+))?)?", words)
    if found is None:
        return None
    form, values, profile, spread = found[1], found[2], found[3] or "drawn", float(found[4] or 1)
    taken = {
        "log": profile == "mixed" or (rule == "gdn" and (profile == "init" or values == "-5,0")),
        "bounded": rule == "kda" and profile != "mixed" and values is not None and "," not in values,
        "softplus": rule == "kda" and profile != "mixed" and values is None,
    }
    if not taken[form]:
        return None
    lower_bound = float(values) if form == "bounded" else None
    return {"form": form, "profile": profile, "spread": spread, "lower_bound": lower_bound}


def parse(line: str) -> dict | None:
    """A case line of the tables; None for the rest of the grammar."""
    words = line.split()
    case = {"rule": words[0], "dtype": words[1], "flags": {w for w in words if "=" not in w}}
    case.update(word.split("=", 1) for word in words if "=" in word)
    lengths = []
    for item in case.get("seqs", "").split(","):
        length, _, times = item.partition("x")
        lengths += [int(length)] * int(times or 1) if length else []
    case["lengths"] = lengths
    gate = parse_gate(case["rule"], case.get("gate", ""))
    if case["dtype"] != "bf16" or not lengths or not {"init", "final", "l2norm"} <= case["flags"] or gate is None:
        return None
    if "checkpoints" in case:  # of the others only some have them, each with positions of its own
        return None
    return {**case, **gate}


def read_cases(path: pathlib.Path) -> list[dict]:
    """Rows {case, line} of a file of cases."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        name, colon, words = line.partition(": ")
        if line:
            rows.append({"case": name if colon else "", "line": words if colon else line})
    return rows


def inverse_softplus(torch, x):
    return x + torch.log(-torch.expm1(-x))


def make_inputs(torch, case: dict, seed: int) -> dict:
    """Fresh values of the same distributions as tools/check draws them from (docs/cases.md, Gates)."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    tokens, hqk, hv = sum(case["lengths"]), int(case["hqk"]), int(case["hv"])

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype, generator=generator)

    def uniform(low, high, *shape):
        return torch.rand(*shape, device="cuda", generator=generator) * (high - low) + low

    def initial_bias(*shape):
        return inverse_softplus(torch, uniform(math.log(1e-3), math.log(0.1), *shape).exp())

    x = {"q": normal(tokens, hqk, 128), "k": normal(tokens, hqk, 128), "v": normal(tokens, hv, 128)}
    fresh, mixed = case["profile"] == "init", case["profile"] == "mixed"
    if mixed:  # three heads of ten hold, the others forget
        held = torch.tensor([-1e-4 if head % 10 in (2, 5, 8) else -1.0 for head in range(hv)], device="cuda")
    if case["rule"] == "kda":
        x["g"], x["beta"] = normal(tokens, hv, 128) * case["spread"], normal(tokens, hv)
        if mixed:
            x["g"] = held[None, :, None].to(torch.bfloat16).expand(tokens, hv, 128).contiguous()
        elif not fresh:
            x["a_log"], x["dt_bias"] = uniform(-3.0, 2.0, hv), normal(hv, 128, dtype=torch.float32)
        else:
            bounded = case["form"] == "bounded"
            x["a_log"] = torch.zeros(hv, device="cuda") if bounded else uniform(1.0, 16.0, hv).log()
            x["dt_bias"] = initial_bias(hv, 128)
    else:
        x["beta"] = uniform(0.0, 1.0, tokens, hv)
        if mixed:
            x["g"] = held.expand(tokens, hv).contiguous()
        elif not fresh:
            x["g"] = uniform(-5.0, 0.0, tokens, hv)
        else:
            a = 16.0 - uniform(0.0, 16.0, hv)  # never 0
            raw = normal(tokens, hv, dtype=torch.float32) * case["spread"] + initial_bias(hv)
            x["g"] = -a * torch.nn.functional.softplus(raw)
    x["initial"] = normal(len(case["lengths"]), hv, 128, 128, dtype=torch.float32)  # [N, HV, DV, DK]
    x["final"] = torch.empty_like(x["initial"])
    x["o"] = torch.full_like(x["v"], float("nan"))
    offsets = [0]
    for length in case["lengths"]:
        offsets.append(offsets[-1] + length)
    x["offsets_host"] = offsets
    x["offsets"] = torch.tensor(offsets, device="cuda", dtype=torch.int64)
    x["offsets_cpu"] = torch.tensor(offsets, dtype=torch.int64)
    x["offsets_int32"] = x["offsets"].to(torch.int32)
    return x


# ---- packages: each is a function of (torch, case, inputs) that returns a call giving (o, final), or None ---


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
    function = ops.chunk_kda if case["rule"] == "kda" else ops.chunk_gated_delta_rule
    if case["rule"] == "kda":
        common.update(use_beta_sigmoid_in_kernel=True)
        if case["form"] != "log":
            common.update(A_log=x["a_log"], dt_bias=x["dt_bias"].reshape(-1), use_gate_in_kernel=True)
        if case["lower_bound"] is not None:
            common.update(safe_gate=True, lower_bound=case["lower_bound"])

    def call():
        o, final = function(**batch, **common)[:2]
        return o[0], final

    return call


def flash_kda(torch, case, x):
    package = importlib.import_module("flash_kda")
    if case["rule"] != "kda" or case["hqk"] != case["hv"] or case["lower_bound"] is None:
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
        return out[0], final

    return call


def flashinfer(torch, case, x):
    package = importlib.import_module("flashinfer.gdn_prefill")
    if case["rule"] != "gdn":
        return None
    decay = x["g"].exp()  # it takes decays, not their logarithms; no part of its time
    out, final = torch.empty_like(x["v"]), torch.empty_like(x["initial"])

    def call():
        package.chunk_gated_delta_rule(
            x["q"],
            x["k"],
            x["v"],
            g=decay,
            beta=x["beta"],
            initial_state=x["initial"],
            output_final_state=True,
            cu_seqlens=x["offsets"],
            use_qk_l2norm_in_kernel=True,
            output=out,
            output_state=final,
            max_seqlen=max(case["lengths"]),
        )
        return out, final

    return call


def cudnn(torch, case, x):
    host = importlib.import_module("cudnn.linear_attention.hopper.cuda_host")
    if case["rule"] != "kda":
        return None
    # It takes gates and beta in fp32, and without a bound log-decays: none of that is part of its time.
    g, beta = x["g"].float(), x["beta"].float()
    flags = host.FLAG_L2NORM | host.FLAG_BETA_SIGMOID
    if case["form"] == "softplus":
        g = -x["a_log"].exp()[None, :, None] * torch.nn.functional.softplus(g + x["dt_bias"])
    if case["form"] == "bounded":
        flags |= host.FLAG_SAFE_GATE
    # Not read without FLAG_SAFE_GATE, but it wants addresses.
    a_log, dt_bias = (x[name].float().contiguous() if name in x else g for name in ("a_log", "dt_bias"))
    out, final = torch.empty_like(x["v"]), torch.empty_like(x["initial"])

    def call():
        host.launch(
            device=torch.cuda.current_device(),
            stream=torch.cuda.current_stream().cuda_stream,
            q=x["q"].data_ptr(),
            k=x["k"].data_ptr(),
            v=x["v"].data_ptr(),
            g=g.data_ptr(),
            beta=beta.data_ptr(),
            cu_seqlens=x["offsets_int32"].data_ptr(),
            initial_state=x["initial"].data_ptr(),
            o=out.data_ptr(),
            final_state=final.data_ptr(),
            total_tokens=x["q"].shape[0],
            n_seqs=len(case["lengths"]),
            n_heads=x["v"].shape[1],
            a_log=a_log.data_ptr(),
            dt_bias=dt_bias.data_ptr(),
            gate_lower_bound=case["lower_bound"] or 0.0,
            flags=flags,
            n_qk_heads=x["q"].shape[1],
        )
        return out, final

    return call


def cula(torch, case, x):
    package = importlib.import_module("cula.kda")
    if case["rule"] != "kda" or case["hqk"] != case["hv"] or case["lower_bound"] is None:
        return None
    batch = {name: x[name].unsqueeze(0) for name in ("q", "k", "v", "g", "beta")}

    def call():
        o, final = package.flashkda_prefill(
            **batch,
            scale=128**-0.5,
            A_log=x["a_log"],
            dt_bias=x["dt_bias"].reshape(-1),
            initial_state=x["initial"],
            output_final_state=True,
            cu_seqlens=x["offsets_int32"],
            use_gate_in_kernel=True,
            safe_gate=True,
            lower_bound=case["lower_bound"],
        )[:2]
        return o[0], final

    return call


# name: its adapter, the module that shows whether it is there, and the distribution that has its version
PACKAGES = {
    "flashinfer": (flashinfer, "flashinfer.gdn_prefill", "flashinfer-python"),
    "cudnn": (cudnn, "cudnn.linear_attention.hopper.cuda_host", "nvidia-cudnn-frontend"),
    "flash_kda": (flash_kda, "flash_kda", "flash-kda"),
    "cula": (cula, "cula.kda", "cula"),
    "fla": (fla, "fla.ops", "fla-core"),
}


def find_packages(root: pathlib.Path = ROOT) -> None:
    """.deps/python and the packages inside it that a .pth file would name come before what is installed."""
    folder = root / ".deps" / "python"
    for place in (folder / "nvidia_cutlass_dsl" / "dsl_packages", folder):
        if place.is_dir() and str(place) not in sys.path:
            sys.path.insert(0, str(place))
    os.environ.setdefault("FLASHINFER_CUTE_DSL_DISABLE_CACHE", "1")  # kernels stay in the process that compiled them


def version_of(distribution: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return ""


def importable(wanted: list[str]) -> dict:
    """{name: (adapter, version)} of the packages that are here."""
    found = {}
    for name in wanted:
        adapter, module, distribution = PACKAGES[name]
        try:
            importlib.import_module(module)
            found[name] = (adapter, version_of(distribution))
            print(f"{name} {found[name][1]}: timed")
        except Exception as error:
            print(f"{name}: cannot be imported ({type(error).__name__}: {error}), left out")
            if not isinstance(error, ModuleNotFoundError):
                traceback.print_exc(limit=-4, file=sys.stdout)
    return found


# ---- time ------------------------------------------------------------------------------------------------------------


def capture(torch, call):
    """A replay of the call, or None where it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:  # any package may refuse in its own way
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
    graphs = []
    for call in calls:
        graphs.append(capture(torch, call))
        if graphs[-1] is None:
            break
    captured = graphs[-1] is not None
    turns = [graph.replay for graph in graphs] if captured else calls
    # Cycles of about half a nanosecond in which the host gets ahead: 1 ms for replays, 50 ms for eager launches
    pause = 2_000_000 if captured else 100_000_000
    times, begin, i = [], time.monotonic(), 0
    while time.monotonic() - begin < seconds or len(times) < 10:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(17)]
        torch.cuda._sleep(pause)
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


def measure_package(torch, name: str, adapter, inputs: tuple, expected: tuple, row: dict, seconds: float) -> None:
    case, sets = inputs
    calls = [adapter(torch, case, x) for x in sets]
    if calls[0] is None:
        return
    begin = time.monotonic()
    found = calls[0]()
    torch.cuda.synchronize()
    first = time.monotonic() - begin
    errors = [difference(torch, mine, theirs) for mine, theirs in zip(found, expected)]
    if not all(error <= AGREEMENT for error in errors):
        print(f"  {name}: o and final states differ from ours by {errors[0]:.2g} and {errors[1]:.2g}: no peer here")
        row.setdefault("disagrees", {})[name] = errors
        return
    ms, captured = time_calls(torch, calls, seconds)
    row.setdefault("peers", {})[name] = ms
    if not captured:
        row["eager"] = sorted({*row.get("eager", []), name})
    agrees = " and ".join(f"{error:.1e}" for error in errors)
    print(f"  {name}: {ms:.4f} ms ({'graph' if captured else 'eager'}), agrees to {agrees}, first call {first:.1f} s")


def measure(torch, library, packages: dict, row: dict, seconds: float) -> None:
    case = parse(row["line"])
    if case is None:
        print(f"{row['case'] or row['line']}: not of a form that peers take, left out")
        return
    one = make_inputs(torch, case, 1)
    size = sum(t.numel() * t.element_size() for t in one.values() if hasattr(t, "numel"))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(1, min(MOST_SETS, -(-CACHE_MULTIPLE * cache // size)))
    sets = [one] + [make_inputs(torch, case, 2 + i) for i in range(count - 1)]
    for other in sets[1:]:  # FLA knows lengths it has seen by the identity of their tensor, and a handful of those
        other["offsets"], other["offsets_cpu"] = one["offsets"], one["offsets_cpu"]
    ours = [library.forward(case["rule"], x, x["offsets_host"], case["form"], case["lower_bound"]) for x in sets]
    expected = (ours[0]().clone(), one["final"].clone())
    ms, _ = time_calls(torch, ours, seconds)
    before = f", {row['ms']:.4f} before" if "ms" in row else ""
    row.setdefault("ms", ms)
    row.setdefault("beside_ms", []).append(ms)
    print(f"{row['case'] or row['line']}: ours {ms:.4f} ms in this process{before}; {count} input sets")
    for name, (adapter, _) in packages.items():
        try:
            measure_package(torch, name, adapter, (case, sets), expected, row, seconds)
        except Exception as error:
            print(f"  {name}: failed: {type(error).__name__}: {error}")
            traceback.print_exc(limit=-6, file=sys.stdout)
            torch.cuda.synchronize()


def commit_here() -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return os.environ.get("DELTARELAY_COMMIT", "")


def driver_here() -> str:
    """The version of the GPU's driver; nothing without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("\n")[0].strip()
    return ""


def describe_run(torch, packages: dict) -> dict:
    """What a new file of results says of its run."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = {"device": torch.cuda.get_device_name(0), "driver": driver_here(), "date": now, "commit": commit_here()}
    run["torch"] = torch.__version__
    return {**run, "packages": {name: version for name, (_, version) in packages.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a file of cases (.txt), or results to add to (.json)")
    parser.add_argument("--library", required=True)
    parser.add_argument("--json", metavar="FILE", help="where results of a file of cases go")
    parser.add_argument("--only", metavar="REGEX", help="default: the targets, under all gates of models too")
    parser.add_argument("--packages", default=",".join(PACKAGES), metavar="NAME,NAME")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--stop-after", type=float, default=math.inf, metavar="S")
    arguments = parser.parse_args()
    source = pathlib.Path(arguments.source)
    only = arguments.only or "^((softplus2?|init|mixed)-)?(kda|gdn)-"
    wanted = arguments.packages.split(",")
    unknown = [name for name in wanted if name not in PACKAGES]
    if unknown:
        parser.error(f"--packages: expected some of {', '.join(PACKAGES)}, found {', '.join(unknown)}")
    if source.suffix != ".json" and not arguments.json:
        parser.error("--json: expected a file for the results, found none")
    find_packages()
    try:
        import torch
    except ImportError as error:
        print(f"torch: cannot be imported ({error}), and every package needs it: nothing is timed")
        return 0 if source.suffix == ".json" else 1
    packages = importable(wanted)
    if not packages:
        print("no package to time")
        return 0 if source.suffix == ".json" else 1
    if not torch.cuda.is_available():
        print("torch finds no GPU: nothing is timed")
        return 1
    from deltarelay_library import Library

    library = Library(arguments.library)
    if source.suffix == ".json":
        results, target = json.loads(source.read_text(encoding="utf-8")), source
    else:
        rows = [row for row in read_cases(source) if re.search(only, row["case"] or row["line"])]
        results, target = {**describe_run(torch, packages), "rows": rows}, pathlib.Path(arguments.json)
    begin = time.monotonic()
    # Fast packages on every case first: FLA's tuning must not keep them from being timed.
    turns = [{name: found for name, found in packages.items() if (name == "fla") == slow} for slow in (False, True)]
    with torch.inference_mode():
        for turn in filter(None, turns):
            for row in results["rows"]:
                if not re.search(only, row["case"] or row["line"]):
                    continue
                if time.monotonic() - begin > arguments.stop_after:
                    print(f"{row['case'] or row['line']}: {', '.join(turn)} left out, out of time")
                    continue
                measure(torch, library, turn, row, arguments.seconds)
                torch.cuda.empty_cache()
                # After each case: a run that ends early keeps what was measured.
                target.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
