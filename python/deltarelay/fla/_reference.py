"""FLA's naive references with the arguments of FLA's functions. For tests: slow, and differentiable."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

# Tokens whose states a gradient keeps at once; it keeps one state of each other span. The derivatives of a token fill
# arrays of the span's size, so short spans are faster too.
_SPAN = 32
# Bytes of the states of one token: a gradient takes as many heads at a time as fit, one at least. States in a cache are
# faster.
_STATES = 1 << 21
# Arguments a gradient can be asked of.
_PER_TOKEN = ("q", "k", "v", "g", "beta")
_PER_HEAD = ("A_log", "dt_bias")
TENSORS = (*_PER_TOKEN, *_PER_HEAD, "initial_state")


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name."""
    arguments = inspect.signature(function).bind(*args, **kwargs)
    arguments.apply_defaults()
    return dict(arguments.arguments)


def _gate(name: str, a: dict[str, Any]) -> torch.Tensor:
    from fla.ops.gated_delta_rule.gate import naive_gdn_gate
    from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate

    if not a["use_gate_in_kernel"]:
        return a["g"].float()
    if name == "chunk_gated_delta_rule":
        return naive_gdn_gate(a["g"], a["A_log"], a["dt_bias"])
    if a["lower_bound"] is None:
        return naive_kda_gate(a["g"], a["A_log"], a["dt_bias"])
    return naive_kda_lowerbound_gate(a["g"], a["A_log"], a["dt_bias"], a["lower_bound"])


def _reference(name: str, a: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, final states) of one sequence or several of one length in fp32; `a` as `bound` gives them, states [K, V]."""
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.kda.naive import naive_recurrent_kda

    q, k, v, beta = (a[x].float() for x in ("q", "k", "v", "beta"))
    g = _gate(name, a)
    if a["use_qk_l2norm_in_kernel"]:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    if a["use_beta_sigmoid_in_kernel"]:
        beta = beta.sigmoid() * (2 if a["allow_neg_eigval"] else 1)
    scale = a["scale"] if a["scale"] is not None else q.shape[-1] ** -0.5
    if name == "chunk_kda":
        return naive_recurrent_kda(q, k, v, g, beta, scale, a["initial_state"], True)
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    return naive_recurrent_gated_delta_rule(q, k, v, beta, g, scale, a["initial_state"], True)


def _of_heads(x: torch.Tensor, name: str, heads: tuple[int, int, int], group: int) -> torch.Tensor:
    """What some heads of v, (first, end, all of them), have of an argument: a view if `x` is contiguous."""
    first, end, count = heads
    if name in _PER_HEAD:
        each = x.numel() // count
        return x.flatten()[first * each : end * each]
    if name in ("q", "k"):
        return x[:, :, first // group : end // group]
    return x[:, first:end] if name == "initial_state" else x[:, :, first:end]


def _add_gradients(name: str, a: dict[str, Any], found: dict[str, Any], do: Any, state: Any, dstate: Any) -> Any:
    """Adds gradients of all tokens of `a` to `found`, and returns that of the state before them. From the last span to
    the first: each starts at a stored state, so nothing else of a span outlives it."""
    starts = range(0, do.shape[1], _SPAN)
    states = state.new_empty(len(starts), *state.shape)

    def span(x: torch.Tensor, start: int) -> torch.Tensor:
        return x[:, start : start + _SPAN].detach()

    for index, start in enumerate(starts):
        states[index] = state
        with torch.no_grad():
            tokens = {x: span(a[x], start) for x in _PER_TOKEN}
            _, state = _reference(name, {**a, **tokens, "initial_state": state})
    for index, start in reversed([*enumerate(starts)]):
        with torch.enable_grad():
            leaves = {x: span(a[x], start).requires_grad_() for x in _PER_TOKEN}
            leaves |= {x: a[x].detach().requires_grad_() for x in _PER_HEAD if a[x] is not None}
            leaves["initial_state"] = states[index].requires_grad_()
            directions = (span(do, start).float(), dstate)
            gradients = torch.autograd.grad(
                _reference(name, {**a, **leaves}), [*leaves.values()], directions, allow_unused=True
            )
        *gradients, dstate = gradients
        for tensor, gradient in zip(leaves, gradients):
            if tensor in _PER_TOKEN:
                span(found[tensor], start).copy_(gradient)
            elif gradient is not None:
                found[tensor].add_(gradient)
    return dstate


class _Borrowed(torch.autograd.Function):
    """Forward: ours. Backward: derivatives of the naive reference. It tests o and final states, never a gradient."""

    @staticmethod
    def forward(ctx: Any, name: str, function: Callable[..., Any], a: dict[str, Any], *tensors: Any) -> Any:
        ctx.name, ctx.a = name, {key: value for key, value in a.items() if key not in TENSORS}
        ctx.save_for_backward(*tensors)
        given = {**a, **dict(zip(TENSORS, tensors))}
        keywords = {key: value for key, value in given.items() if repr(value) != "unset"}
        return tuple(function(**keywords))

    @staticmethod
    def backward(ctx: Any, do: Any, dfinal: Any, *_: Any) -> Any:
        """A few heads at a time, and one of packed sequences: no results of one depend on another's."""
        given = {name: x for name, x in zip(TENSORS, ctx.saved_tensors) if x is not None}
        found = {name: torch.zeros(x.shape, dtype=x.dtype, device=x.device) for name, x in given.items()}
        found |= {name: found[name].float() for name in _PER_HEAD if name in found}
        q, v, offsets = given["q"], given["v"], ctx.a["cu_seqlens"]
        count, group = v.shape[2], v.shape[2] // q.shape[2]
        sequences = [(slice(None), slice(0, q.shape[1]))]
        if offsets is not None:
            spans = itertools.pairwise(offsets.tolist())
            sequences = [(slice(n, n + 1), slice(*span)) for n, span in enumerate(spans)]
        v_first = ctx.a["state_v_first"] or ctx.a["transpose_state_layout"] is True

        def of_states(x: torch.Tensor | None, rows: slice, heads: Any) -> torch.Tensor:
            if x is None:
                shape = (q.shape[0], heads[1] - heads[0], q.shape[3], v.shape[3])
                return torch.zeros(shape, device=q.device)
            x = _of_heads(x, "initial_state", heads, group)[rows]
            return x.transpose(-1, -2) if v_first else x

        step = group * max(1, _STATES // (4 * q.shape[0] * group * q.shape[3] * v.shape[3]))
        for first in range(0, count, step):
            heads = (first, min(first + step, count), count)
            a = {**ctx.a, **dict.fromkeys(TENSORS)}
            a |= {name: _of_heads(x, name, heads, group) for name, x in given.items()}
            sums = {name: _of_heads(x, name, heads, group) for name, x in found.items()}
            for rows, tokens in sequences:
                of_tokens = {name: a[name][:, tokens] for name in _PER_TOKEN}
                sums_of_tokens = {name: sums[name][:, tokens] for name in _PER_TOKEN}
                dstate = _add_gradients(
                    ctx.name,
                    {**a, **of_tokens},
                    {**sums, **sums_of_tokens},
                    _of_heads(do, "v", heads, group)[:, tokens],
                    of_states(given.get("initial_state"), rows, heads).float(),
                    of_states(dfinal, rows, heads).float(),
                )
                if "initial_state" in found:
                    of_states(found["initial_state"], rows, heads).copy_(dstate)
        return (None, None, None, *(found.get(name) for name in TENSORS))


def with_borrowed_gradients(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call whose tensors require grad, as `_backend.state.train` has it."""
    a = bound(function, args, kwargs)
    return _Borrowed.apply(name, function, a, *(a.get(tensor) for tensor in TENSORS))
