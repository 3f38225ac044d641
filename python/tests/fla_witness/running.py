"""A case's tensors, its call through FLA, and FLA's naive reference."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import torch
import torch.nn.functional as F
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.kda.naive import naive_recurrent_kda

from .cases import Case


def _chosen(like: torch.Tensor, share: float, draw: torch.Generator) -> torch.Tensor:
    return torch.rand(like.shape, generator=draw) < share


class Tensors:
    """Of one case: keys almost parallel where sequences are batched (uniform numbers), normal where they are packed."""

    def __init__(self, case: Case) -> None:
        draw = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
        batch, tokens = (1, case.offsets[-1]) if case.offsets else (case.batch, case.tokens)
        dtype = getattr(torch, case.dtype)

        def rows(heads: int, *width: int) -> torch.Tensor:
            shape = (batch, tokens, heads, *width)
            made = torch.randn(shape, generator=draw) if case.offsets else torch.rand(shape, generator=draw)
            return made.to(dtype)

        self.q, self.k = rows(case.hqk, case.width), rows(case.hqk, case.width)
        if not case.l2norm:
            self.q, self.k = F.normalize(self.q, dim=-1), F.normalize(self.k, dim=-1)
        self.v = rows(case.hv, case.width)
        features = (case.width,) if case.rule == "kda" else ()
        self.g = torch.randn(batch, tokens, case.hv, *features, generator=draw)
        if not case.raw_gate:
            self.g = F.logsigmoid(self.g) / case.gate_divisor
            self.g = self.g.masked_fill(_chosen(self.g, case.open_share, draw), 0.0)
        self.g = self.g.masked_fill(_chosen(self.g, case.shut_share, draw), -1000.0)
        if case.safe and not case.raw_gate:
            self.g = self.g.clamp(-5, 0)
        if case.raw_gate and case.rule == "kda":
            self.g = self.g.to(dtype)
        self.beta = torch.randn(batch, tokens, case.hv, generator=draw).to(dtype)
        if not case.sigmoid:
            self.beta = self.beta.sigmoid()
        self.a_log = torch.rand(case.hv, generator=draw).mul(15).add(1).log() if case.a_log else None
        if self.a_log is not None and case.offsets and case.rule == "kda":
            self.a_log = self.a_log.view(1, 1, -1, 1)
        self.bias = torch.randn(case.hv * (features or (1,))[0], generator=draw) if case.bias else None
        n = len(case.offsets) - 1 if case.offsets else batch
        self.initial = torch.randn(n, case.hv, case.width, case.width, generator=draw)
        if case.half_initial:
            self.initial = self.initial.half()


def call(case: Case, t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, final states [N, HV, K, V]) of FLA's function."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    options: dict[str, Any] = {
        "initial_state": t.initial.transpose(-1, -2).contiguous() if case.v_first else t.initial,
        "output_final_state": True,
        "scale": case.scale,
        "use_qk_l2norm_in_kernel": case.l2norm,
        "use_beta_sigmoid_in_kernel": case.sigmoid,
        "allow_neg_eigval": case.twice,
        "state_v_first": case.v_first,
        "chunk_size": case.chunk,
    }
    if case.offsets:
        options["cu_seqlens"] = torch.tensor(case.offsets)
        options["cu_seqlens_cpu"] = torch.tensor(case.offsets)
    if case.raw_gate:
        options |= {"use_gate_in_kernel": True, "A_log": t.a_log, "dt_bias": t.bias}
    if case.rule == "kda":
        options |= {"safe_gate": case.safe, "disable_recompute": case.keep_all}
        options["lower_bound"] = -5.0 if case.safe else None
    function = chunk_kda if case.rule == "kda" else chunk_gated_delta_rule
    o, final = function(t.q, t.k, t.v, t.g, t.beta, **options)
    return o, final.transpose(-1, -2) if case.v_first else final


def _gate(case: Case, t: Tensors) -> torch.Tensor:
    from fla.ops.gated_delta_rule.gate import naive_gdn_gate
    from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate

    if not case.raw_gate:
        return t.g
    if case.rule == "gdn":
        return naive_gdn_gate(t.g, t.a_log, t.bias)
    a_log = t.a_log.flatten() if t.a_log is not None else None
    if case.safe:
        return naive_kda_lowerbound_gate(t.g, a_log, t.bias, -5.0)
    return naive_kda_gate(t.g, a_log, t.bias)


def reference(case: Case, t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, g = t.q.float(), t.k.float(), t.v.float(), _gate(case, t).float()
    if case.l2norm:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    beta = t.beta.float()
    if case.sigmoid:
        beta = beta.sigmoid() * (2 if case.twice else 1)
    if case.rule == "gdn":
        group = case.hv // case.hqk
        q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    scale = case.scale if case.scale is not None else case.width**-0.5
    offsets = case.offsets or (0, case.tokens)
    outputs, finals = [], []
    for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
        part = [x[:, begin:end] for x in (q, k, v, g, beta)]
        initial = t.initial[n : n + 1] if case.offsets else t.initial
        if case.rule == "kda":
            o, final = naive_recurrent_kda(*part, scale, initial.float(), True)
        else:
            o, final = naive_recurrent_gated_delta_rule(*part[:3], part[4], part[3], scale, initial.float(), True)
        outputs.append(o)
        finals.append(final)
    return torch.cat(outputs, 1), torch.cat(finals, 0)


def check(name: str, expected: torch.Tensor, found: torch.Tensor, ratio: float) -> None:
    """FLA's metric, without its exemptions: root mean square of the difference over that of the reference."""
    assert found.shape == expected.shape, f"{name}: expected {list(expected.shape)}, found {list(found.shape)}"
    difference = found.double() - expected.double()
    if difference.abs().max().item() <= 1e-6:
        return
    assert not found.isnan().any(), f"{name}: NaN"
    error = difference.square().mean().sqrt().item() / (expected.double().square().mean().sqrt().item() + 1e-8)
    assert error < ratio, f"{name}: error ratio {error:.5f}, expected below {ratio}"
