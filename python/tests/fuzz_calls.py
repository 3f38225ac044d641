"""Unlikely calls after likely ones: whatever a cached plan does not know must be compared on every call.

python tests/fuzz_calls.py --seconds 60 [--framework torch] [--seed 1]

A call with late or known lengths puts its plan into the cache. Then copies of its arguments are spoilt in one or two
places (another length, other strides, another type, lists that lie), called with that plan in the cache, and called
once more with an empty cache. Both must give the same results to the bit, or the same refusal. Under
AddressSanitizer, with every array in memory of exactly its size, also nothing behind an array is touched. Exit 1: a
call that differs, printed with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy

import deltarelay
from deltarelay import _call, _plans, stages

Arrays = dict[str, Any]
WRITTEN = ("o", "final", "checkpoint", "report")
MUTANTS = 8  # of one right call
FILL = 7.0  # in outputs, so that what is not written is the same, too


class Call(NamedTuple):
    """A function, its rule and what it is given."""

    function: Callable[..., Any]
    rule: str
    arrays: Arrays
    options: dict[str, Any]

    def run(self, framework: str) -> list[Any]:
        """Results and written arguments, as arrays."""
        given = {name: to_framework(framework, value) for name, value in self.arrays.items()}
        results = self.function(self.rule, **given, **self.options)
        if framework == "torch" and isinstance(results, deltarelay.Outputs) and "checkpoint" not in given:
            results = results[:2]  # allocated with as many rows as there could be, some of which nobody writes
        written = [given[name] for name in WRITTEN if given.get(name) is not None]
        return [None if x is None else numpy.asarray(x).copy() for x in (*results, *written)]


def to_framework(framework: str, value: Any) -> Any:
    """A tensor on the same memory, where torch has such tensors."""
    if framework == "numpy" or value is None:
        return value
    import torch

    if not value.flags.writeable or not value.dtype.isnative or any(stride < 0 for stride in value.strides):
        value = numpy.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))).copy()
    return torch.from_numpy(value)


def exact(array: Any) -> Any:
    """A copy in memory of its own size, with nothing behind it."""
    return numpy.array(array, order="C")


# ---- calls that are right


def draw_lengths(draw: random.Random) -> list[int]:
    most = draw.choice((1, 3, 20, 70, 150))
    return [draw.randrange(most + 1) for _ in range(draw.randrange(1, 4))]


def draw_rows(draw: random.Random, rule: str, tokens: int, heads: tuple[int, int, int, int], batched: bool) -> Arrays:
    hqk, hv, dk, dv = heads
    normal = numpy.random.default_rng(draw.randrange(2**31))
    dtype = draw.choice(("f4", "f4", "f2"))

    def rows(*shape: int) -> Any:
        values = normal.standard_normal((tokens, *shape)).astype(dtype)
        return exact(values[None] if batched else values)

    gates = -numpy.abs(rows(hv, dk) if rule == "kda" else rows(hv)) / 4
    return {"q": rows(hqk, dk), "k": rows(hqk, dk), "v": rows(hv, dv), "g": gates, "beta": abs(rows(hv)) / 4}


def draw_pool(draw: random.Random, n: int, shape: tuple[int, ...], name: str) -> Arrays:
    """States of n sequences, as rows or in slots of a pool."""
    if draw.random() < 0.5:
        return {name: numpy.full((n, *shape), FILL, "f4")}
    slots = n + draw.randrange(3)
    index = draw.sample(range(slots), n)
    return {
        name: numpy.full((slots, *shape), FILL, "f4"),
        f"{name}_index": numpy.array(index, draw.choice(("i4", "i8"))),
    }


def draw_forward(draw: random.Random) -> Call:
    rule = draw.choice(("kda", "gdn"))
    lengths = draw_lengths(draw)
    tokens, n = sum(lengths), len(lengths)
    hqk = draw.choice((1, 2))
    heads = hqk, hqk * draw.choice((1, 2)), draw.choice((8, 16)), draw.choice((8, 24))
    arrays = draw_rows(draw, rule, tokens, heads, draw.random() < 0.5)
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths)])
    arrays["seq_offsets"] = offsets.astype(draw.choice(("i4", "i8")))
    options: dict[str, Any] = {"late_lengths": draw.random() < 0.8, "l2norm": True, "threads": 1}
    matrix = (heads[1], heads[3], heads[2])
    if draw.random() < 0.3:
        options["segments"] = draw.choice((2, "off", "len:64"))
    if draw.random() < 0.4:
        arrays["o"] = numpy.full(arrays["v"].shape, FILL, arrays["q"].dtype)
    if draw.random() < 0.5:
        arrays.update(draw_pool(draw, n, matrix, "initial"))
    if "initial" in arrays and draw.random() < 0.3:
        arrays["has_initial"] = numpy.array([draw.randrange(2) for _ in range(n)], draw.choice(("?", "u1")))
    if draw.random() < 0.4:
        arrays.update(draw_pool(draw, n, matrix, "final"))
    else:
        options["final"] = True
    if draw.random() < 0.5:
        draw_checkpoints(draw, arrays, options, lengths, matrix)
    if draw.random() < 0.2:
        arrays["report"] = numpy.zeros(1, "i4")
    return Call(deltarelay.forward, rule, arrays, options)


def draw_checkpoints(
    draw: random.Random, arrays: Arrays, options: dict[str, Any], lengths: list[int], matrix: tuple[int, ...]
) -> None:
    options["checkpoints"] = kind = draw.choice((16, 32, "chunks", "list"))
    positions = [16 * (i + 1) for length in lengths for i in range(min(2, length // 16))]
    rows = len(positions)
    if kind == "list":
        counts = [min(2, length // 16) for length in lengths]
        arrays["checkpoint_offsets"] = numpy.concatenate([[0], numpy.cumsum(counts)]).astype("i4")
        arrays["checkpoint_positions"] = numpy.array(positions, "i4")
    else:
        every = 64 if kind == "chunks" else kind
        rows = sum(lengths) // every + len(lengths)  # no call has more
    if draw.random() < 0.7:
        arrays.update(draw_pool(draw, rows, matrix, "checkpoint"))


def draw_stage(draw: random.Random) -> Call:
    """A stage that reads tokens of several tensors, on what the stage before it wrote."""
    rule = draw.choice(("kda", "gdn"))
    lengths = [max(1, length) for length in draw_lengths(draw)]
    heads = 1, 2, 16, 16
    rows = draw_rows(draw, rule, sum(lengths), heads, False)
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype("i4")
    options = {"late_lengths": draw.random() < 0.8, "chunk": draw.choice((16, 64))}
    late = {"seq_offsets": offsets}
    wanted = ("aqk", "w", "u", "k_to_end", "q_from_start", "gate_sums")
    local = Call(stages.chunk_local, rule, {**rows, **late}, {**options, "wanted": wanted})
    if draw.random() < 0.4:
        return local
    made = local.function(rule, **local.arrays, **local.options)
    given = {name: exact(getattr(made, name)) for name in ("w", "u", "k_to_end", "gate_sums")}
    if draw.random() < 0.5:
        return Call(stages.state_pass, rule, {**given, **late}, {**options, "final": True})
    passed = stages.state_pass(rule, **given, **late, **options)
    states = {name: exact(getattr(passed, name)) for name in ("v_new", "states")}
    given = {**states, "aqk": exact(made.aqk), "q_from_start": exact(made.q_from_start), **late}
    return Call(stages.outputs, rule, given, options)


# ---- what spoils them


def cut(draw: random.Random, value: Any) -> Any:
    """Another length of one axis: fewer, or more by repetition."""
    axis = draw.randrange(value.ndim)
    length = value.shape[axis]
    wanted = max(0, length + draw.choice((-30, -2, -1, 1, 2, 30, -length, 1 - length)))
    index = numpy.arange(wanted) % max(1, length)
    return exact(value.take(index, axis)) if length else numpy.zeros_like(value, shape=value.shape)


def one_row(draw: random.Random, value: Any) -> Any:
    """All rows of an axis are one."""
    axis = draw.randrange(value.ndim)
    if value.shape[axis] == 0:
        return value
    first = exact(value.take([0], axis))
    return numpy.lib.stride_tricks.as_strided(
        first, value.shape, [0 if i == axis else stride for i, stride in enumerate(first.strides)]
    )


def stepped(draw: random.Random, value: Any) -> Any:
    """The same numbers with other strides."""
    axis = draw.randrange(value.ndim)
    step = draw.choice((-1, 2, 3))
    wide = numpy.repeat(value, abs(step), axis)
    return wide[tuple(slice(None, None, step) if i == axis else slice(None) for i in range(value.ndim))]


def turned(draw: random.Random, value: Any) -> Any:
    return numpy.asfortranarray(value) if draw.random() < 0.5 else exact(value.swapaxes(0, -1))


def retyped(draw: random.Random, value: Any) -> Any:
    return value.astype(draw.choice(("f4", "f2", "f8", "i4", "i8", "u1", "?", ">f4", ">i4")))


def reshaped(draw: random.Random, value: Any) -> Any:
    return value[None] if draw.random() < 0.5 or value.ndim == 1 else value.reshape(-1)


def misaligned(draw: random.Random, value: Any) -> Any:
    memory = numpy.zeros(value.nbytes + 16, "u1")
    shift = draw.choice((1, 2, 4, 8))
    found = memory[shift : shift + value.nbytes].view(value.dtype).reshape(value.shape)
    found[...] = value
    return found


def lied(draw: random.Random, value: Any) -> Any:
    """Other numbers in a list."""
    changed = exact(value)
    if changed.size and changed.dtype.kind in "iub":
        place = draw.randrange(changed.size)
        changed.reshape(-1)[place] = draw.choice((0, 1, 2, 5, 16, 48, 100)) if draw.random() < 0.9 else 127
    return changed


def locked(draw: random.Random, value: Any) -> Any:
    value = exact(value)
    value.flags.writeable = False
    return value


SPOILERS = (cut, cut, cut, cut, one_row, stepped, turned, retyped, reshaped, misaligned, lied, lied, locked)


def spoil(draw: random.Random, call: Call) -> Call:
    arrays = {name: exact(value) for name, value in call.arrays.items()}
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name = draw.choice(sorted(arrays))
        fate = draw.random()
        if fate < 0.03:
            del arrays[name]
        elif fate < 0.06:
            arrays[name] = arrays[draw.choice(sorted(arrays))]
        elif fate < 0.16:  # all tensors with a row for each token, alike
            tokens = arrays["v" if "v" in arrays else min(arrays)].shape
            wanted = draw.choice((0, 1, 2, 63, 64, 65, 100))
            for each, value in arrays.items():
                axis = next((i for i in range(min(2, value.ndim)) if len(tokens) > 1 and value.shape[i] > 2), None)
                if each in ("seq_offsets", "initial", "final", "checkpoint") or axis is None:
                    continue
                arrays[each] = exact(value.take(numpy.arange(wanted) % value.shape[axis], axis))
        elif arrays[name].ndim:
            arrays[name] = draw.choice(SPOILERS)(draw, arrays[name])
        if not arrays:
            break
    return call._replace(arrays=arrays)


# ---- with a plan in the cache, and without


def outcome(call: Call, framework: str) -> Any:
    """Results, or the refusal as text. What the call writes, which may be its initial states too, is then put back: the
    next call starts from the same."""
    written = [call.arrays[name] for name in WRITTEN if name in call.arrays]
    before = [(value, value.copy()) for value in written if value.flags.writeable]
    try:
        return call.run(framework)
    except (deltarelay.Error, TypeError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for value, content in before:
            value[...] = content


def same(first: Any, second: Any) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return type(first) is type(second) and first == second
    return all(
        (a is None) == (b is None) and (a is None or (a.shape == b.shape and a.tobytes() == b.tobytes()))
        for a, b in zip(first, second)
    )


def described(call: Call) -> str:
    shapes = {name: f"{value.dtype}{list(value.shape)} strides {value.strides}" for name, value in call.arrays.items()}
    return f"{call.function.__name__}({call.rule!r}, {shapes}, {call.options})"


def check(seed: int, framework: str) -> list[str]:
    """One right call and what becomes of it. Returns what differs."""
    draw = random.Random(seed)
    call = (draw_forward if draw.random() < 0.75 else draw_stage)(draw)
    failed = []
    for turn in range(MUTANTS):
        _plans.PLANS.clear()
        first = outcome(call, framework)
        if isinstance(first, str):
            return [f"seed {seed}: the right call is refused: {first}\n  {described(call)}"]
        spoilt = spoil(draw, call)
        if draw.random() < 0.2:  # the right call is found after the spoilt one, too
            call, spoilt = spoilt, call
            if isinstance(outcome(call, framework), str):
                call, spoilt = spoilt, call
                continue
        cached = outcome(spoilt, framework)
        _plans.PLANS.clear()
        fresh = outcome(spoilt, framework)
        if not same(cached, fresh):
            failed.append(
                f"seed {seed}, turn {turn}: with a plan in the cache {shown(cached)}, without {shown(fresh)}\n"
                f"  first  {described(call)}\n  then   {described(spoilt)}"
            )
        if call.arrays is spoilt.arrays:
            break
    return failed


def shown(found: Any) -> str:
    return found if isinstance(found, str) else "results"


@contextlib.contextmanager
def zeroed_memory() -> Iterator[None]:
    """NumPy's outputs begin as zeros: rows that no call writes are then the same in any two calls."""

    def allocate_by(function: Callable[..., Any]) -> None:
        numpy.empty = function
        if _call._core is not None:
            _call._core.set_numpy(numpy.ndarray, function)

    usual = numpy.empty
    allocate_by(numpy.zeros)
    try:
        yield
    finally:
        allocate_by(usual)


def bindings() -> list[Any]:
    usual = _call._binding
    return [usual] if usual.name == "ctypes" else [usual, _call._by_ctypes("a test asks for it")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--calls", type=int, default=1 << 62, help="spoilt calls at most")
    parser.add_argument("--framework", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    until, seed, calls, failed = time.monotonic() + arguments.seconds, arguments.seed, 0, []
    ways = bindings()
    with zeroed_memory():
        while time.monotonic() < until and calls < arguments.calls and len(failed) < 5:
            _call._binding = ways[seed % len(ways)]
            failed += check(seed, arguments.framework)
            calls += MUTANTS
            seed += 1
    print(
        f"{arguments.framework}: seeds {arguments.seed} to {seed - 1}, about {calls} spoilt calls, {len(failed)} differ"
    )
    print("\n".join(failed[:5]))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
