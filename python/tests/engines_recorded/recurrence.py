"""The recurrence as it is defined, on packed rows, with states [slot, HV, V, K]."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def unit(x: Any) -> Any:
    x = x.double()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def raw_gate(g: Any, a_log: Any, bias: Any, lower_bound: float | None) -> Any:
    """Log-decays of KDA from a projection [1, T, HV, K]."""
    heads, width = g.shape[-2:]
    a = a_log.double().exp().reshape(heads, 1)
    x = g.double() if bias is None else g.double() + bias.double().reshape(heads, width)
    return -a * functional.softplus(x) if lower_bound is None else lower_bound * torch.sigmoid(a * x)


def recurrence(
    q: Any, k: Any, v: Any, g: Any, beta: Any, offsets: Any, initial: Any, *, l2norm: bool, scale: float | None = None
) -> tuple[Any, Any, list[list[Any]]]:
    """(o, final states, for each sequence the state after each number of tokens). g are log-decays."""
    group = v.shape[-2] // q.shape[-2]
    q, k = (unit(x) if l2norm else x.double() for x in (q, k))
    q, k = (x[0].repeat_interleave(group, dim=1) for x in (q, k))
    v, beta, decay = v[0].double(), beta[0].double(), g[0].double().exp()
    decay = decay if decay.ndim == 3 else decay[..., None].expand(*decay.shape, k.shape[-1])
    o, finals, steps = torch.zeros_like(v), [], []
    for n, (begin, end) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:])):
        state = initial[n].double().clone()
        steps.append([state.clone()])
        for t in range(begin, end):
            state = state * decay[t][:, None, :]
            error = v[t] - torch.einsum("hvk,hk->hv", state, k[t])
            state = state + torch.einsum("hv,hk->hvk", error * beta[t][:, None], k[t])
            o[t] = torch.einsum("hvk,hk->hv", state, q[t]) * (q.shape[-1] ** -0.5 if scale is None else scale)
            steps[-1].append(state.clone())
        finals.append(state)
    return o[None], torch.stack(finals), steps


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    error = (found.double() - expected.double()).abs().max() / expected.double().pow(2).mean().sqrt().clamp(min=1e-6)
    assert found.shape == expected.shape and float(error) < tolerance, f"largest error {float(error):.2e} of the rms"
