"""The plain call and its plan: `forward`, `plan`, `explain`."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, overload

from . import _library, _plans
from ._call import call
from ._settings import Settings, Values, known_settings, settings, word
from ._types import (
    AnyTensor,
    BetaForm,
    Carry,
    FloatType,
    Gate,
    Math,
    Options,
    PlanOptions,
    Rule,
    StateLayout,
    Tensor,
)
from ._views import TensorSpec
from ._wording import in_python_words
from .errors import Invalid

if TYPE_CHECKING:
    from typing_extensions import Unpack

_O = TypeVar("_O")
_Final = TypeVar("_Final")
_Checkpoint = TypeVar("_Checkpoint")


if TYPE_CHECKING:
    # Python 3.10 has no named tuples with parameters.
    class Outputs(NamedTuple, Generic[_O, _Final, _Checkpoint]):
        o: _O
        final: _Final
        checkpoint: _Checkpoint

else:

    class Outputs(NamedTuple):
        """Results of a forward: o, shaped as v; final, the states after the last token of each sequence; checkpoint,
        states inside sequences. Results that were not requested are None."""

        o: Any
        final: Any = None
        checkpoint: Any = None


def _compiling() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


@overload
def forward(
    rule: Rule,
    q: AnyTensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    final: Literal[False] | None = None,
    checkpoints: None = None,
    **options: Unpack[Options],
) -> Outputs[AnyTensor, None, None]: ...


@overload
def forward(
    rule: Rule,
    q: AnyTensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    final: Literal[True] | Tensor,
    checkpoints: None = None,
    **options: Unpack[Options],
) -> Outputs[AnyTensor, AnyTensor, None]: ...


@overload
def forward(
    rule: Rule,
    q: AnyTensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    final: Literal[False] | None = None,
    checkpoints: int | Literal["chunks", "list"],
    **options: Unpack[Options],
) -> Outputs[AnyTensor, None, AnyTensor]: ...


@overload
def forward(
    rule: Rule,
    q: AnyTensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    final: Literal[True] | Tensor,
    checkpoints: int | Literal["chunks", "list"],
    **options: Unpack[Options],
) -> Outputs[AnyTensor, AnyTensor, AnyTensor]: ...


@overload
def forward(
    rule: Rule,
    q: AnyTensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    final: bool | Tensor | None = None,
    checkpoints: int | Literal["chunks", "list"] | None = None,
    **options: Unpack[Options],
) -> Outputs[AnyTensor, AnyTensor | None, AnyTensor | None]: ...
def forward(
    rule: Rule,
    q: AnyTensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    l2norm: bool = False,
    gate: Gate = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    lower_bound: float | None = None,
    gate_floor: float | None = None,
    beta_form: BetaForm = "value",
    seq_offsets: Any = None,
    host_offsets: Any = None,
    initial: Any = None,
    initial_index: Any = None,
    has_initial: Any = None,
    final: Any = None,
    final_index: Any = None,
    final_dtype: FloatType = "fp32",
    state_layout: StateLayout = "value_major",
    null_index: int | None = None,
    checkpoints: int | Literal["chunks", "list"] | None = None,
    checkpoint: Any = None,
    checkpoint_index: Any = None,
    checkpoint_offsets: Any = None,
    checkpoint_positions: Any = None,
    o: Any = None,
    o_dtype: FloatType | None = None,
    report: Any = None,
    segments: int | str = "auto",
    backend: str | None = None,
    variant: str | None = None,
    isa: str | None = None,
    policy: str | None = None,
    threads: int = 0,
    invariant: bool = False,
    carry: Carry = "exact",
    carry_log_decay: float | None = None,
    math: Math = "default",
    late_lengths: bool = False,
) -> Outputs[Any, Any, Any]:
    """Outputs and final states of a delta-rule recurrence.

    Per sequence and value head, with a state S of DK x DV and every token in order:
    ``S <- diag(exp(g)) S;  r = v - S'k;  S <- S + beta k r';  o = scale S'q``.

    Tensors are torch's (CPU or CUDA) or NumPy's, all of one kind and device. A call on CUDA tensors runs on torch's
    current stream of their device and returns before the work is done; nothing is read back to the host.

    Args:
        rule: "kda" (a gate per key channel) or "gdn" (a gate per head).
        q, k: queries and keys, [B, T, HQK, DK] or [T, HQK, DK]; fp32, bf16 or fp16.
        v: values, [B, T, HV, DV] or [T, HV, DV], of q's type. HV is a multiple of HQK: value head h reads key head
            h // (HV // HQK).
        g: the gate, [B, T, HV, DK] (kda) or [B, T, HV] (gdn), read as `gate` says.
        beta: the write strength, [B, T, HV], read as `beta_form` says.
        scale: factor on q; DK ** -0.5 if None.
        l2norm: scale q and k by rsqrt(sum of squares + 1e-6) first.
        gate: "log" (g is the natural logarithm of the decay, <= 0), "linear" (g is the decay, 0 to 1), "softplus"
            (log-decay -exp(a_log) * softplus(g + dt_bias)) or "bounded" (log-decay
            lower_bound * sigmoid(exp(a_log) * (g + dt_bias))).
        a_log: HV elements in any shape, fp32, bf16 or fp16. Required with gate="softplus"; with gate="bounded" None
            means a factor of 1.
        dt_bias: HV * DK (kda) or HV (gdn) elements, with gate="softplus" and "bounded"; None means no bias.
        lower_bound: a number below 0; only with gate="bounded".
        gate_floor: a promise that log and linear gates are never below this log-decay (a number below 0); lower ones
            are raised to it. On cuda-sm90 a floor of -5 lets KDA run its fused kernel.
        beta_form: "value", "logit" (sigmoid of it counts) or "twice_logit" (2 * sigmoid).
        seq_offsets: [N + 1] of int32 or int64, where sequences of different lengths are packed into T (B is 1):
            sequence n has the rows from seq_offsets[n] to seq_offsets[n + 1]. On CUDA they stay on the device.
        host_offsets: the same in host memory, if known there. The plan then fits the lengths, and seq_offsets is not
            read.
        initial: states to start from, one per sequence, [N, HV, DV, DK]; or a pool of them, with `initial_index`. Zero
            if None.
        initial_index: [N] of int32 or int64, the slot of the pool that each sequence reads. A negative one, or
            `null_index`, reads zero.
        has_initial: [N] of bool or uint8. Where it is False, the sequence starts from zero and `initial` is not read.
        final: True for new final states of `final_dtype`, or the tensor or pool to write them to, which may be
            `initial` itself.
        final_index: [N] of int32 or int64, the slot of the pool that each sequence writes. A negative one, or
            `null_index`, writes nothing.
        final_dtype: "fp32", "bf16" or "fp16"; type of final states and checkpoints that are allocated here.
        state_layout: "value_major" ([..., DV, DK], as serving engines keep it) or "key_major" ([..., DK, DV], FLA's
            default), of initial, final and checkpoint. It is never guessed: with DK = DV both look alike.
        null_index: a slot number that means no slot, in addition to negative ones (vLLM's block 0).
        checkpoints: which states inside sequences are kept: an integer n, a multiple of 16 (after every n tokens),
            "chunks" (at the start of each 64 tokens, FLA's h), "list" (after checkpoint_positions), or None.
        checkpoint: where they go; [rows, HV, DV, DK], or a pool with `checkpoint_index`. Allocated if None, with as
            many rows as the lengths give, or could give if only the device knows them.
        checkpoint_index: the slot of each row in the pool. A negative one writes nothing.
        checkpoint_offsets: [N + 1] of int32, with checkpoints="list": rows of sequence n are
            checkpoint_offsets[n] to checkpoint_offsets[n + 1]. None may be above the length of checkpoint_positions; on
            CUDA, where it is not read back, nobody checks that.
        checkpoint_positions: one int32 per row, with checkpoints="list": tokens of the sequence before the state;
            increasing, multiples of 16, within the sequence.
        o: where outputs go, [.., T, HV, DV]; allocated if None.
        o_dtype: "fp32", "bf16" or "fp16" of an allocated o; q's if None.
        report: one int32 on the device that receives DR_REPORT_* bits of the C header; 0 if all was well.
        segments: "auto", "off", a count for each sequence, or "len:<tokens>".
        backend: its name, such as "cpu" or "cuda-sm90"; if None, the first that accepts.
        variant: for a backend with several ("fused", "prepared"); if None, the fastest by the cost model.
        isa: instruction set of the cpu backend, from the list of `info()`; if None, the best of this machine.
        policy: another system's rule for cuts ("fla", ...), to compare plans; ours if None.
        threads: of the cpu backend; 0 means one for each CPU that the process may use.
        invariant: the bits of a sequence's results do not depend on the rest of the batch.
        carry: "exact", or "truncated": transitions of segments that have decayed below carry_log_decay may be taken as
            0 (needs l2norm and a sigmoid form of beta).
        carry_log_decay: natural logarithm, -80 to below 0, with carry="truncated"; -16 if None.
        math: "default", or "tf32" for faster and less exact products of fp32 data on cuda-sm80.
        late_lengths: read lengths from seq_offsets during the call, on the CPU too, as a call on CUDA tensors always
            does. Calls with similar token counts then share a plan.

    Returns:
        Outputs(o, final, checkpoint), with None for what was not requested. A tensor that was passed to be written is
        returned itself.

    Raises:
        Invalid: the arguments contradict each other or a rule. Names the argument, what was expected and found.
        WrongType: an argument has an unsupported type.
        Unsupported: the requested backend, or every backend, declines the call; or a tensor requires grad.
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
        None,  # checkpoint_dtype: every field, because the whole tuple is looked up
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
    """(o, final, checkpoint). Fields of Settings, and tensors in the order of `_plans.ARGUMENTS`. torch.compile can
    trace it."""
    if _compiling():
        from . import torch_ops

        return torch_ops.dispatch(Values(*values), tensors)
    try:
        chosen = known_settings(values)
    except TypeError:  # an unhashable value, which `settings` names
        chosen = None
    return call(chosen or settings(*values), tensors)


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
    chosen = settings(*Values(rule, **fields))
    request, _ = _plans.request_of(chosen, tuple(arguments.get(name) for name in _plans.ARGUMENTS))
    if request.copies:
        name = request.copies[0]
        raise Invalid(f"{name}: expected a tensor that is read as it lies, found one that has to be copied")
    return request


_FIELDS = {"beta_form", *Settings.__dataclass_fields__} - {"rule", "beta", "final", "key"}


_UNSUPPORTED = 2  # of dr_status


def plan(
    rule: Rule,
    q: Tensor | TensorSpec,
    k: Tensor | TensorSpec,
    v: Tensor | TensorSpec,
    g: Tensor | TensorSpec,
    beta: Tensor | TensorSpec,
    **options: Unpack[PlanOptions],
) -> _plans.Plan:
    """The plan of `forward` with the same arguments. Nothing is run.

    Tensors may be `TensorSpec(shape, dtype, device)`, also for a device that is not here ("h200"): such a plan can be
    read, not run. Tensors that `forward` would copy first are refused.

    Args:
        rule: as in `forward`, and so are the other arguments.
        q, k, v, g, beta: tensors or specs.
        options: any other argument of `forward`.

    Returns:
        A Plan.
    """
    return _plans.Plan(_planned(rule, {"q": q, "k": k, "v": v, "g": g, "beta": beta}, options))


def explain(
    rule: Rule,
    q: Tensor | TensorSpec,
    k: Tensor | TensorSpec,
    v: Tensor | TensorSpec,
    g: Tensor | TensorSpec,
    beta: Tensor | TensorSpec,
    **options: Unpack[PlanOptions],
) -> dict[str, str]:
    """Which backends accept a call, and why the others decline.

    Args:
        rule: as in `forward`, and so are the other arguments.
        q, k, v, g, beta: tensors or specs.
        options: any other argument of `forward`.

    Returns:
        For each backend, in order of preference: "accepts", or the reason why it declines.
    """
    request = _planned(rule, {"q": q, "k": k, "v": v, "g": g, "beta": beta}, options)
    library = _library.library()
    names = [library.dr_backend_name(index).decode() for index in range(library.dr_backend_count())]
    if request.options.backend:
        word("backend", request.options.backend.decode(), names)
    request.options.backend = None
    answers = {}
    for index, name in enumerate(names):
        status = library.dr_backend_check(index, ctypes.byref(request.problem), ctypes.byref(request.options))
        if status not in (0, _UNSUPPORTED):
            _library.check(status)
        answers[name] = "accepts" if status == 0 else in_python_words(_library.last_error())
    return answers


__all__ = ["Outputs", "explain", "forward", "plan"]
