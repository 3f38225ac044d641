"""The chunk form of the recurrence in double precision, equation by equation: what the stages should give.

Tensors are [T, heads, ..] of packed sequences, gates are log-decays, states are key-major.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy

Arrays = dict[str, numpy.ndarray]
# exp of it is 0, and differences with it are numbers. For gates of -inf.
_NEVER = -1e6


def per_chunk(offsets: Any, chunk: int) -> list[tuple[int, int, int]]:
    """(sequence, first token, end) of every chunk."""
    return [
        (n, start, min(start + chunk, end))
        for n, (begin, end) in enumerate(itertools.pairwise(offsets))
        for start in range(begin, end, chunk)
    ]


def _widened(q: Any, k: Any, v: Any, g: Any, beta: Any) -> tuple[numpy.ndarray, ...]:
    """In double precision, with a key head and a gate per key channel for each value head."""
    group = v.shape[1] // k.shape[1]
    q, k = (numpy.repeat(x, group, axis=1).astype(float) for x in (q, k))
    g = g.astype(float)
    if g.ndim == 2:
        g = numpy.repeat(g[..., None], k.shape[2], axis=2)
    return q, k, v.astype(float), g, beta.astype(float)


def local(q: Any, k: Any, v: Any, g: Any, beta: Any, offsets: Any, chunk: int, scale: float) -> Arrays:
    """Results of the stage without a state; gate_sums as wide as g, natural logarithms."""
    sums_wide = g.ndim == 3
    q, k, v, g, beta = _widened(q, k, v, g, beta)
    tokens, heads, _ = k.shape
    made = {
        "aqk": numpy.zeros((tokens, heads, chunk)),
        "inverse": numpy.zeros((tokens, heads, chunk)),
        "w": numpy.zeros(k.shape),
        "u": numpy.zeros(v.shape),
        "k_to_end": numpy.zeros(k.shape),
        "q_from_start": numpy.zeros(k.shape),
        "gate_sums": numpy.zeros(k.shape),
    }
    for _, a, b in per_chunk(offsets, chunk):
        n = b - a
        made["gate_sums"][a:b] = numpy.cumsum(g[a:b], axis=0)
        total = numpy.cumsum(numpy.maximum(g[a:b], _NEVER), axis=0)
        lower = numpy.tri(n, dtype=bool)
        for h in range(heads):
            decay = numpy.exp(numpy.where(lower[..., None], total[:, None, h] - total[None, :, h], -numpy.inf))
            keys = k[a:b, h][None] * decay
            akk = beta[a:b, h, None] * numpy.einsum("ic,ijc->ij", k[a:b, h], keys) * numpy.tri(n, k=-1)
            inverse = numpy.linalg.inv(numpy.eye(n) + akk)
            made["aqk"][a:b, h, :n] = scale * numpy.einsum("ic,ijc->ij", q[a:b, h], keys)
            made["inverse"][a:b, h, :n] = inverse
            made["w"][a:b, h] = inverse @ (beta[a:b, h, None] * numpy.exp(total[:, h]) * k[a:b, h])
            made["u"][a:b, h] = inverse @ (beta[a:b, h, None] * v[a:b, h])
        made["k_to_end"][a:b] = k[a:b] * numpy.exp(total[-1:] - total)
        made["q_from_start"][a:b] = q[a:b] * numpy.exp(total)
    if not sums_wide:
        made["gate_sums"] = made["gate_sums"][..., 0]
    return made


def _last_decay(sums: numpy.ndarray, b: int, dk: int) -> numpy.ndarray:
    last = sums[b - 1]
    return numpy.exp(last if last.ndim == 2 else numpy.repeat(last[:, None], dk, axis=1))


def passed(made: Arrays, offsets: Any, chunk: int, initial: Any = None) -> Arrays:
    """states, v_new and final."""
    w, u = made["w"], made["u"]
    heads, dk, dv = w.shape[1], w.shape[2], u.shape[2]
    final = numpy.zeros((len(offsets) - 1, heads, dk, dv)) if initial is None else initial.astype(float).copy()
    states, v_new = [], numpy.zeros(u.shape)
    for n, a, b in per_chunk(offsets, chunk):
        state = final[n]
        states.append(state.copy())
        v_new[a:b] = u[a:b] - numpy.einsum("thk,hkv->thv", w[a:b], state)
        written = numpy.einsum("thk,thv->hkv", made["k_to_end"][a:b], v_new[a:b])
        final[n] = _last_decay(made["gate_sums"], b, dk)[..., None] * state + written
    return {"states": numpy.array(states).reshape(len(states), heads, dk, dv), "v_new": v_new, "final": final}


def outputs(made: Arrays, through: Arrays, offsets: Any, chunk: int, scale: float) -> numpy.ndarray:
    o = numpy.zeros(through["v_new"].shape)
    for row, (_, a, b) in enumerate(per_chunk(offsets, chunk)):
        from_state = scale * numpy.einsum("thk,hkv->thv", made["q_from_start"][a:b], through["states"][row])
        o[a:b] = from_state + numpy.einsum("ihj,jhv->ihv", made["aqk"][a:b, :, : b - a], through["v_new"][a:b])
    return o


def summaries(made: Arrays, offsets: Any, chunk: int) -> numpy.ndarray:
    """[N, HV, DV + DK, DK]: the columns of B, then those of M."""
    heads, dk, dv = made["w"].shape[1], made["w"].shape[2], made["u"].shape[2]
    m = numpy.repeat(numpy.broadcast_to(numpy.eye(dk), (1, heads, dk, dk)), len(offsets) - 1, axis=0).copy()
    for n, a, b in per_chunk(offsets, chunk):
        step = numpy.einsum("thk,thj->hkj", made["k_to_end"][a:b], made["w"][a:b])
        decay = _last_decay(made["gate_sums"], b, dk)[..., None]
        m[n] = decay * m[n] - step @ m[n]
    added = passed(made, offsets, chunk)["final"]
    return numpy.concatenate([added, m], axis=-1).swapaxes(-1, -2).reshape(len(offsets) - 1, heads, dv + dk, dk)


def error(found: Any, expected: numpy.ndarray) -> float:
    """rms of the difference over rms of what is expected, of the worst head (axis 1)."""
    found = numpy.asarray(found, float)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not expected.size:
        return 0.0
    axes = tuple(axis for axis in range(expected.ndim) if axis != 1)
    rms = numpy.sqrt((expected**2).mean(axis=axes))
    floor = max(0.01 * float(numpy.sqrt((expected**2).mean())), 1e-30)
    return float((numpy.sqrt(((found - expected) ** 2).mean(axis=axes)) / numpy.maximum(rms, floor)).max())


def close(found: Any, expected: numpy.ndarray, tolerance: float = 2e-5, what: str = "") -> None:
    worst = error(found, expected)
    assert worst < tolerance, f"{what}: error {worst:.2e}, expected below {tolerance:.0e}"
