"""FLA's naive references with the arguments of FLA's functions. For tests: slow, and differentiable."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# Tokens whose states a gradient keeps at once. Between spans only one state is kept: all of 8,192 tokens of 96 heads
# would take 51 GB.
_SPAN = 128
# Arguments a gradient can be asked of.
TENSORS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state")


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name."""
    arguments = inspect.signature(function).bind(*args, **kwargs)
    arguments.apply_defaults()
    return dict(arguments.arguments)


def _gate(name: str, a: dict[str, Any]) -> torch.Tensor:
    from fla.ops.gated_delta_rule.gate import naive_gdn_gate
    from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate

    if not a["use_gate_in_kernel"]:
        return a["g"]
    a_log = a["A_log"].flatten() if a["A_log"] is not None else None
    if name == "chunk_gated_delta_rule":
        return naive_gdn_gate(a["g"], a_log, a["dt_bias"])
    if a["lower_bound"] is None:
        return naive_kda_gate(a["g"], a_log, a["dt_bias"])
    return naive_kda_lowerbound_gate(a["g"], a_log, a["dt_bias"], a["lower_bound"])


def _recurrence(name: str, rows: list[torch.Tensor], scale: float, initial: torch.Tensor | None) -> tuple[Any, Any]:
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.kda.naive import naive_recurrent_kda

    q, k, v, g, beta = rows
    if name == "chunk_kda":
        return naive_recurrent_kda(q, k, v, g, beta, scale, initial, True)
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    return naive_recurrent_gated_delta_rule(q, k, v, beta, g, scale, initial, True)


def _in_spans(name: str, rows: list[torch.Tensor], scale: float, initial: torch.Tensor | None) -> tuple[Any, Any]:
    parts, state = [], initial
    for begin in range(0, max(1, rows[0].shape[1]), _SPAN):
        span = [x[:, begin : begin + _SPAN] for x in rows]
        o, state = checkpoint(_recurrence, name, span, scale, state, use_reentrant=False, preserve_rng_state=False)
        parts.append(o)
    return torch.cat(parts, 1), state


def reference(name: str, a: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, final states) in fp32; `a` as `bound` gives them."""
    q, k, v, g, beta = (a[x].float() for x in ("q", "k", "v", "g", "beta"))
    g = _gate(name, a).float()
    if a["use_qk_l2norm_in_kernel"]:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    if a["use_beta_sigmoid_in_kernel"]:
        beta = beta.sigmoid() * (2 if a["allow_neg_eigval"] else 1)
    scale = a["scale"] if a["scale"] is not None else q.shape[-1] ** -0.5
    v_first = a["state_v_first"] or a["transpose_state_layout"] is True
    initial = a["initial_state"]
    if initial is not None:
        initial = initial.float().transpose(-1, -2) if v_first else initial.float()
    if a["cu_seqlens"] is None:
        o, final = _in_spans(name, [q, k, v, g, beta], scale, initial)
    else:
        offsets = a["cu_seqlens"].tolist()
        parts = []
        for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
            first = initial[n : n + 1] if initial is not None else None
            parts.append(_in_spans(name, [x[:, begin:end] for x in (q, k, v, g, beta)], scale, first))
        o, final = torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 0)
        o = F.pad(o, (0, 0, 0, 0, 0, v.shape[1] - o.shape[1]))
    return o, final.transpose(-1, -2) if v_first else final


class _Borrowed(torch.autograd.Function):
    """Forward: ours. Backward: derivatives of the naive reference. It tests o and final states, never a gradient."""

    @staticmethod
    def forward(ctx: Any, name: str, function: Callable[..., Any], a: dict[str, Any], *tensors: Any) -> Any:
        ctx.name, ctx.a = name, a
        ctx.save_for_backward(*tensors)
        given = {**a, **dict(zip(TENSORS, tensors))}
        keywords = {key: value for key, value in given.items() if repr(value) != "unset"}
        return tuple(function(**keywords))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(True) if x is not None else None for x in ctx.saved_tensors]
            o, final = reference(ctx.name, {**ctx.a, **dict(zip(TENSORS, leaves))})
            pairs = [(x, dx) for x, dx in zip((o, final), gradients) if dx is not None]
            wanted = [x for x in leaves if x is not None]
            found = torch.autograd.grad([x for x, _ in pairs], wanted, [dx.to(x) for x, dx in pairs], allow_unused=True)
        by_leaf = iter(found)
        return (None, None, None, *(None if x is None else next(by_leaf) for x in leaves))


def with_borrowed_gradients(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call whose tensors require grad, as `_backend.state.train` has it."""
    a = bound(function, args, kwargs)
    return _Borrowed.apply(name, function, a, *(a.get(tensor) for tensor in TENSORS))
