"""The plain call and its plan: `forward`, `plan`, `explain`."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _library, _plans
from ._call import call
from ._settings import Settings, Values, settings
from ._views import torch_if_imported
from .errors import Invalid


class Outputs(NamedTuple):
    """Results of a forward. What was not asked for is None."""

    o: Any  # as v
    final: Any = None  # states behind the last token of each sequence
    checkpoint: Any = None  # states inside sequences


def _compiling() -> bool:
    torch = torch_if_imported()
    return torch is not None and torch.compiler.is_compiling()


def forward(
    rule: str,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    scale: float | None = None,
    l2norm: bool = False,
    gate: str = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    lower_bound: float | None = None,
    gate_floor: float | None = None,
    beta_form: str = "value",
    seq_offsets: Any = None,
    host_offsets: Any = None,
    initial: Any = None,
    initial_index: Any = None,
    has_initial: Any = None,
    final: Any = None,
    final_index: Any = None,
    final_dtype: str = "fp32",
    state_layout: str = "value_major",
    null_index: int | None = None,
    checkpoints: int | str | None = None,
    checkpoint: Any = None,
    checkpoint_index: Any = None,
    checkpoint_offsets: Any = None,
    checkpoint_positions: Any = None,
    o: Any = None,
    o_dtype: str | None = None,
    report: Any = None,
    segments: int | str = "auto",
    backend: str | None = None,
    variant: str | None = None,
    isa: str | None = None,
    policy: str | None = None,
    threads: int = 0,
    invariant: bool = False,
    carry: str = "exact",
    carry_log_decay: float | None = None,
    math: str = "default",
    late_lengths: bool = False,
) -> Outputs:
    """Outputs and final states of a delta-rule recurrence.

    Per sequence and value head, with a state S of DK x DV and every token in order:
    ``S <- diag(exp(g)) S;  r = v - S'k;  S <- S + beta k r';  o = scale S'q``.

    Tensors are torch's (CPU or CUDA) or NumPy's, all of one kind and device. A call on CUDA tensors runs on torch's current
    stream of their device and returns before the work is done; nothing is read back to the host.

    Args:
        rule: "kda" (a gate per key channel) or "gdn" (a gate per head).
        q, k: [B, T, HQK, DK], or [T, HQK, DK].
        v: [B, T, HV, DV] or [T, HV, DV]; HV is a multiple of HQK.
        g: [B, T, HV, DK] (kda) or [B, T, HV] (gdn): the gate, read as `gate` says.
        beta: [B, T, HV]: the write strength, read as `beta_form` says.
        scale: of q; DK ** -0.5 if None.
        l2norm: scale q and k by rsqrt(sum of squares + 1e-6) first.
        gate: "log" (natural logarithm of the decay, <= 0), "linear" (the decay, 0 to 1), "softplus"
            (-exp(a_log) * softplus(g + dt_bias)) or "bounded" (lower_bound * sigmoid(exp(a_log) * (g + dt_bias))).
        a_log: HV elements of fp32, bf16 or fp16, with the last two gates.
        dt_bias: HV * DK (kda) or HV (gdn) elements, with the last two gates.
        gate_floor: a promise that log and linear gates never fall below this log-decay.
        beta_form: "value", "logit" (sigmoid) or "twice_logit" (2 * sigmoid).
        seq_offsets: [N + 1] of int32 or int64 where sequences of different lengths are packed into T (B is 1): sequence n has
            the rows from seq_offsets[n] on. On CUDA they stay on the device.
        host_offsets: the same on the host, if it is known there: plans can then fit the lengths, and seq_offsets is not read.
        initial: states [N, HV, DV, DK] to start from, or a pool of them with `initial_index`.
        initial_index, final_index: [N] slots of the pools; a negative one or `null_index` reads zero and writes nothing.
        checkpoint_index: a slot of `checkpoint` for each state inside sequences; a negative one writes nothing.
        has_initial: [N] of bool or uint8: whether a sequence's initial state counts.
        final: True for new final states (of `final_dtype`), or the tensor or pool to write them to, which may be `initial`.
        state_layout: "value_major" ([..., DV, DK], as serving engines keep it) or "key_major" ([..., DK, DV], FLA's default).
        checkpoints: states inside sequences: after every so many tokens (a multiple of 16), "chunks" (at the start of each
            64 tokens), or "list" (at checkpoint_positions, of each sequence from checkpoint_offsets[n] on).
        checkpoint: where they go; allocated if None, as many as the host knows of, else as could be needed.
        o: where outputs go; allocated if None.
        report: one int32 on the device that is set to DR_REPORT_* bits.
        segments: "auto", "off", a count for each sequence, or "len:<tokens>".
        backend, variant, isa, policy, threads, carry, carry_log_decay, math: as in dr_options.
        late_lengths: take lengths from seq_offsets during the call, on the CPU too, as a call on CUDA tensors always does. Calls
            of about as many tokens then share a plan.
        invariant: the bits of a sequence's results do not depend on the rest of the batch.

    Returns:
        Outputs(o, final, checkpoint).
    """
    values = (
        rule,
        scale,
        l2norm,
        gate,
        lower_bound,
        gate_floor,
        beta_form,
        state_layout,
        final is True,
        final_dtype,
        null_index,
        checkpoints,
        o_dtype,
        segments,
        backend,
        variant,
        isa,
        policy,
        None,
        threads,
        invariant,
        carry,
        carry_log_decay,
        math,
        late_lengths,
    )
    tensors = (
        q,
        k,
        v,
        g,
        beta,
        a_log,
        dt_bias,
        o,
        initial,
        initial_index,
        has_initial,
        None if final is True or final is False else final,
        final_index,
        checkpoint,
        checkpoint_index,
        checkpoint_offsets,
        checkpoint_positions,
        seq_offsets,
        report,
        host_offsets,
    )
    return Outputs(*run(values, tensors))


def run(values: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """(o, final, checkpoint). Fields of Settings, and tensors in the order of `_plans.ARGUMENTS`. torch.compile can trace it."""
    if _compiling():
        from . import torch_ops

        return torch_ops.dispatch(Values(*values), tensors)
    return call(settings(*values), *tensors)


def _planned(rule: str, tensors: dict[str, Any], options: dict[str, Any]) -> Any:
    names = {"beta_form": "beta"}
    fields = {names.get(name, name): value for name, value in options.items() if name in _FIELDS}
    arguments = {name: value for name, value in options.items() if name not in _FIELDS}
    if arguments.get("final") is True:
        fields["final"] = True
    if isinstance(arguments.get("final"), bool):
        del arguments["final"]
    unknown = sorted(set(arguments) - set(_plans.ARGUMENTS))
    if unknown:
        raise TypeError(f"plan() got an unexpected keyword argument {unknown[0]!r}")
    arguments.update(tensors)
    request, _ = _plans.request_of(Settings(rule, **fields), tuple(arguments.get(name) for name in _plans.ARGUMENTS))
    if request.copies:
        raise Invalid(f"{request.copies[0]}: expected a tensor that is read as it lies, found one that has to be copied")
    return request


_FIELDS = {"beta_form", *Settings.__dataclass_fields__} - {"rule", "beta", "final", "key"}


def plan(rule: str, q: Any, k: Any, v: Any, g: Any, beta: Any, **options: Any) -> _plans.Plan:
    """The plan of `forward` with the same arguments. Nothing is run.

    Tensors may be `TensorSpec(shape, dtype, device)`, also for a device that is not here ("h200").
    """
    return _plans.Plan(_planned(rule, {"q": q, "k": k, "v": v, "g": g, "beta": beta}, options))


def explain(rule: str, q: Any, k: Any, v: Any, g: Any, beta: Any, **options: Any) -> dict[str, str]:
    """For each backend, in order of preference: "accepts", or why it declines the call."""
    request = _planned(rule, {"q": q, "k": k, "v": v, "g": g, "beta": beta}, options)
    library = _library.library()
    request.options.backend = None
    answers = {}
    for index in range(library.dr_backend_count()):
        name = library.dr_backend_name(index).decode()
        status = library.dr_backend_check(index, ctypes.byref(request.problem), ctypes.byref(request.options))
        answers[name] = "accepts" if status == 0 else _library.last_error()
    return answers


__all__ = ["Outputs", "explain", "forward", "plan"]
