"""The calls as operators of torch: for torch.compile, and for tensors that have no memory of their own.

Imported where torch is and one of them is needed. `torch.ops.deltarelay` has, by the number of results,

    forward_o(...)                    -> o
    forward_o_final(...)              -> o, final
    forward_o_checkpoint(...)         -> o, checkpoint
    forward_o_final_checkpoint(...)   -> o, final, checkpoint
    forward_into(o!, final!, checkpoint!, report!, ...)   where the caller brings a tensor to write to; returns nothing

Arguments have the names of `deltarelay.forward` and are plain tensors, numbers and strings: a graph shows what it
calls.
"""

from __future__ import annotations

from typing import Any

import torch

from ._call import call_in_operator
from ._foreign import refuse_gradients
from ._problem import CHUNK
from ._settings import Settings, Values, settings
from .errors import Invalid, Unsupported

# What is seldom given comes last: trailing arguments that have their defaults cost a call nothing.
_ARGUMENTS = (
    "str rule, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, str gate='log', bool l2norm=False, "
    "float? scale=None, Tensor? a_log=None, Tensor? dt_bias=None, float? lower_bound=None, "
    "str beta_form='value', Tensor? seq_offsets=None, Tensor? initial=None, Tensor? initial_index=None, "
    "Tensor? has_initial=None, str state_layout='value_major', int? null_index=None, "
    "Tensor? host_offsets=None, str final_dtype='fp32', str checkpoints='', int checkpoint_every=0, "
    "Tensor? checkpoint_offsets=None, Tensor? checkpoint_positions=None, str? checkpoint_dtype=None, "
    "str? o_dtype=None, float? gate_floor=None, str segments='auto', int segment_count=0, str? backend=None, "
    "str? variant=None, str? isa=None, str? policy=None, int threads=0, bool invariant=False, "
    "str carry='exact', float? carry_log_decay=None, str math='default', bool late_lengths=False"
)
# Ahead of the others in the operator that writes. in_place: initial is the tensor that final is, which has one name
# here.
_WRITTEN = (
    "Tensor(a!) o, Tensor(b!)? final, Tensor(c!)? checkpoint, Tensor(d!)? report, "
    "Tensor? final_index, Tensor? checkpoint_index, bool in_place"
)
SCHEMAS = {
    "forward_o": f"({_ARGUMENTS}) -> Tensor",
    "forward_o_final": f"({_ARGUMENTS}) -> (Tensor, Tensor)",
    "forward_o_checkpoint": f"({_ARGUMENTS}) -> (Tensor, Tensor)",
    "forward_o_final_checkpoint": f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    "forward_into": f"({_WRITTEN}, {_ARGUMENTS}) -> ()",
}
_NUM_REST = len(_ARGUMENTS[_ARGUMENTS.index("float? gate_floor") :].split(", "))  # behind o_dtype
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_READABLE = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def _call(
    written: tuple[Any, ...],
    wants_final: bool,
    rule: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    gate: str = "log",
    l2norm: bool = False,
    scale: float | None = None,
    a_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    beta_form: str = "value",
    seq_offsets: torch.Tensor | None = None,
    initial: torch.Tensor | None = None,
    initial_index: torch.Tensor | None = None,
    has_initial: torch.Tensor | None = None,
    state_layout: str = "value_major",
    null_index: int | None = None,
    host_offsets: torch.Tensor | None = None,
    final_dtype: str = "fp32",
    checkpoints: str = "",
    checkpoint_every: int = 0,
    checkpoint_offsets: torch.Tensor | None = None,
    checkpoint_positions: torch.Tensor | None = None,
    checkpoint_dtype: str | None = None,
    o_dtype: str | None = None,
    gate_floor: float | None = None,
    segments: str = "auto",
    segment_count: int = 0,
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
) -> tuple[Any, Any, Any]:
    """What the operators do on tensors that are memory."""
    chosen = settings(
        rule,
        scale,
        l2norm,
        gate,
        lower_bound,
        gate_floor,
        beta_form,
        state_layout,
        wants_final,
        final_dtype,
        null_index,
        checkpoint_every or checkpoints or None,
        o_dtype,
        segment_count or segments,
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
        checkpoint_dtype,
    )
    o, final, checkpoint, report, final_index, checkpoint_index, in_place = written
    tensors = (
        q,
        k,
        v,
        g,
        beta,
        a_log,
        dt_bias,
        o,
        final if in_place else initial,
        initial_index,
        has_initial,
        final,
        final_index,
        checkpoint,
        checkpoint_index,
        checkpoint_offsets,
        checkpoint_positions,
        seq_offsets,
        report,
        host_offsets,
    )
    if not _READABLE.issuperset(map(type, tensors)):  # a subclass that has come this far is memory with another name
        tensors = tuple(None if value is None else value.as_subclass(torch.Tensor) for value in tensors)
    return call_in_operator(chosen, tensors)


_NOTHING = (None, None, None, None, None, None, False)


def _forward_o(*arguments: Any) -> torch.Tensor:
    return _call(_NOTHING, False, *arguments)[0]


def _forward_o_final(*arguments: Any) -> tuple[torch.Tensor, ...]:
    return _call(_NOTHING, True, *arguments)[:2]


def _forward_o_checkpoint(*arguments: Any) -> tuple[torch.Tensor, ...]:
    return _call(_NOTHING, False, *arguments)[::2]


def _forward_o_final_checkpoint(*arguments: Any) -> tuple[torch.Tensor, ...]:
    return _call(_NOTHING, True, *arguments)


def _forward_into(*arguments: Any) -> None:
    _call(arguments[:7], False, *arguments[7:])


# ---- shapes alone


def _check(condition: Any, message: str) -> None:
    torch._check_with(Invalid, condition, lambda: message)


def _same(lengths: Any, others: Any) -> bool:
    return len(lengths) == len(others) and all(a == b for a, b in zip(lengths, others))


def _check_shapes(rule: str, q: Any, k: Any, v: Any, g: Any, beta: Any) -> None:
    """What can be said of sizes that may be symbols. The call itself checks everything."""
    _check(q.ndim in (3, 4), f"q: expected [B, T, HQK, DK] or [T, HQK, DK], found {list(q.shape)}")
    _check(_same(k.shape, q.shape), f"k: expected {list(q.shape)} (as q), found {list(k.shape)}")
    _check(
        _same(v.shape[:-2], q.shape[:-2]), f"v: expected {list(q.shape[:-2])} ahead of its heads, found {list(v.shape)}"
    )
    _check(rule in ("kda", "gdn"), f"rule: expected one of 'kda', 'gdn', found {rule!r}")
    heads = v.shape[:-1]
    wanted = (*heads, q.shape[-1]) if rule == "kda" else heads
    _check(_same(g.shape, wanted), f"g: expected {list(wanted)}, found {list(g.shape)}")
    _check(_same(beta.shape, heads), f"beta: expected {list(heads)} (v's tokens and heads), found {list(beta.shape)}")


def _num_seqs(q: Any, seq_offsets: Any, host_offsets: Any) -> Any:
    if host_offsets is not None:
        return host_offsets.shape[0] - 1
    if seq_offsets is not None:
        return seq_offsets.shape[0] - 1
    return q.shape[0] if q.ndim == 4 else 1


def _num_checkpoints(q: Any, is_packed: bool, num_seqs: Any, every: int, positions: Any) -> Any:
    """As the core counts them where lengths are not on the host: a bound for packed sequences. `every` 0: CHUNKS."""
    if positions is not None:
        return positions.shape[0]
    tokens = q.shape[-3]
    if is_packed:
        return tokens // every if every else tokens // CHUNK + num_seqs
    return num_seqs * (tokens // every if every else (tokens + CHUNK - 1) // CHUNK)


def _is_on_host(seq_offsets: Any, host_offsets: Any) -> bool:
    return host_offsets is not None or (seq_offsets is not None and seq_offsets.device.type == "cpu")


def _unknown_rows(bound: Any) -> Any:
    """Rows that depend on lengths which a tensor without memory does not have."""
    try:
        return torch.library.get_ctx().new_dynamic_size(min=0)
    except Exception as error:
        raise Unsupported(
            "checkpoints: with lengths on the host their number depends on values that are not here "
            f"(at most {bound}): bring a tensor checkpoint, or leave host_offsets out"
        ) from error


def _state_shape(v: Any, q: Any, rows: Any, layout: str) -> tuple[Any, ...]:
    heads, dv, dk = v.shape[-2], v.shape[-1], q.shape[-1]
    return (rows, heads, dk, dv) if layout == "key_major" else (rows, heads, dv, dk)


def _checkpoint_dtype(name: str | None, final_dtype: str, q: Any) -> torch.dtype:
    return q.dtype if name == "q" else _DTYPES[name or final_dtype]


def _fake(wants_final: bool, wants_checkpoint: bool) -> Any:
    """Shapes and types of the results. Contents are not looked at, not even those of the offsets."""

    def fake(
        rule: str,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        gate: str = "log",
        l2norm: bool = False,
        scale: Any = None,
        a_log: Any = None,
        dt_bias: Any = None,
        lower_bound: Any = None,
        beta_form: str = "value",
        seq_offsets: Any = None,
        initial: Any = None,
        initial_index: Any = None,
        has_initial: Any = None,
        state_layout: str = "value_major",
        null_index: Any = None,
        host_offsets: Any = None,
        final_dtype: str = "fp32",
        checkpoints: str = "",
        checkpoint_every: int = 0,
        checkpoint_offsets: Any = None,
        checkpoint_positions: Any = None,
        checkpoint_dtype: str | None = None,
        o_dtype: str | None = None,
        *rest: Any,
    ) -> Any:
        _check_shapes(rule, q, k, v, g, beta)
        num_seqs = _num_seqs(q, seq_offsets, host_offsets)
        results = [torch.empty(v.shape, dtype=_DTYPES[o_dtype] if o_dtype else q.dtype, device=q.device)]
        if wants_final:
            shape = _state_shape(v, q, num_seqs, state_layout)
            results.append(torch.empty(shape, dtype=_DTYPES[final_dtype], device=q.device))
        if wants_checkpoint:
            is_packed = seq_offsets is not None or host_offsets is not None
            rows = _num_checkpoints(q, is_packed, num_seqs, checkpoint_every, checkpoint_positions)
            is_late = len(rest) == _NUM_REST and rest[-1]
            if is_packed and checkpoint_positions is None and not is_late and _is_on_host(seq_offsets, host_offsets):
                rows = _unknown_rows(rows)
            shape = _state_shape(v, q, rows, state_layout)
            dtype = _checkpoint_dtype(checkpoint_dtype, final_dtype, q)
            results.append(torch.empty(shape, dtype=dtype, device=q.device))
        return results[0] if len(results) == 1 else tuple(results)

    return fake


def _fake_into(o: Any, *arguments: Any) -> None:
    rule, q, k, v, g, beta = arguments[6:12]
    _check_shapes(rule, q, k, v, g, beta)
    _check(_same(o.shape, v.shape), f"o: expected {list(v.shape)} (as v), found {list(o.shape)}")


# ---- registration


def _register() -> torch.library.Library:
    library = torch.library.Library("deltarelay", "DEF")
    functions = {
        "forward_o": (_forward_o, _fake(False, False)),
        "forward_o_final": (_forward_o_final, _fake(True, False)),
        "forward_o_checkpoint": (_forward_o_checkpoint, _fake(False, True)),
        "forward_o_final_checkpoint": (_forward_o_final_checkpoint, _fake(True, True)),
        "forward_into": (_forward_into, _fake_into),
    }
    tags = [torch.Tag.pt2_compliant_tag]
    if hasattr(torch.Tag, "needs_exact_strides"):  # a compiler that moves axes would make us copy them back
        tags.append(torch.Tag.needs_exact_strides)
    for name, schema in SCHEMAS.items():
        library.define(name + schema, tags=tuple(tags))
        function, fake = functions[name]
        for key in ("CPU", "CUDA"):
            library.impl(name, function, key)
        torch.library.register_fake(f"deltarelay::{name}", fake, lib=library)
    return library


_library = _register()
_ops = torch.ops.deltarelay


# ---- the way to them


_NAMES = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "o", "initial")


def _options(chosen: Settings | Values, tensors: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments of an operator, by name, that do not have their defaults."""
    _, _, _, _, _, a_log, dt_bias, _, initial, initial_index, has_initial = tensors[:11]
    _, _, _, _, checkpoint_offsets, checkpoint_positions, seq_offsets, _, host_offsets = tensors[11:]
    every = chosen.checkpoints
    count = chosen.segments
    given = {
        "gate": chosen.gate,
        "l2norm": chosen.l2norm,
        "scale": chosen.scale,
        "a_log": a_log,
        "dt_bias": dt_bias,
        "lower_bound": chosen.lower_bound,
        "beta_form": chosen.beta,
        "seq_offsets": seq_offsets,
        "initial": initial,
        "initial_index": initial_index,
        "has_initial": has_initial,
        "state_layout": chosen.state_layout,
        "null_index": chosen.null_index,
        "host_offsets": host_offsets,
        "final_dtype": chosen.final_dtype,
        "checkpoints": every if isinstance(every, str) else None,
        "checkpoint_every": None if isinstance(every, str) else every,
        "checkpoint_offsets": checkpoint_offsets,
        "checkpoint_positions": checkpoint_positions,
        "checkpoint_dtype": chosen.checkpoint_dtype,
        "o_dtype": chosen.o_dtype,
        "gate_floor": chosen.gate_floor,
        "segments": count if isinstance(count, str) else None,
        "segment_count": None if isinstance(count, str) else count,
        "backend": chosen.backend,
        "variant": chosen.variant,
        "isa": chosen.isa,
        "policy": chosen.policy,
        "threads": chosen.threads,
        "invariant": chosen.invariant,
        "carry": chosen.carry,
        "carry_log_decay": chosen.carry_log_decay,
        "math": chosen.math,
        "late_lengths": chosen.late_lengths,
    }
    return {name: value for name, value in given.items() if value is not None}


def dispatch(chosen: Settings | Values, tensors: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """(o, final, checkpoint) by the operator that has these results. Arguments as `_call.call` takes them."""
    q, k, v, g, beta, _, _, o, _, _, _, final, final_index, checkpoint, checkpoint_index = tensors[:15]
    refuse_gradients(dict(zip(_NAMES, tensors)))
    options = _options(chosen, tensors)
    rows = (chosen.rule, q, k, v, g, beta)
    wants_checkpoint = chosen.checkpoints is not None
    report = tensors[18]
    if o is None and final is None and checkpoint is None and report is None:
        if final_index is not None or checkpoint_index is not None:
            name = "final" if final_index is not None else "checkpoint"
            raise Invalid(f"{name}_index: expected None without a pool {name}")
        if chosen.final and wants_checkpoint:
            return _ops.forward_o_final_checkpoint.default(*rows, **options)
        if chosen.final:
            o, final = _ops.forward_o_final.default(*rows, **options)
        elif wants_checkpoint:
            o, checkpoint = _ops.forward_o_checkpoint.default(*rows, **options)
        else:
            o = _ops.forward_o.default(*rows, **options)
        return o, final, checkpoint
    return _dispatch_into(chosen, tensors, rows, options)


def _dispatch_into(
    chosen: Settings | Values, tensors: tuple[Any, ...], rows: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """What the caller does not bring is allocated here: an operator that writes returns nothing."""
    q, _, v, _, _, _, _, o, initial, _, _, final, final_index, checkpoint, checkpoint_index = tensors[:15]
    seq_offsets, report, host_offsets = tensors[17:20]
    num_seqs = _num_seqs(q, seq_offsets, host_offsets)
    if o is None:
        o = torch.empty(v.shape, dtype=_DTYPES[chosen.o_dtype] if chosen.o_dtype else q.dtype, device=q.device)
    if final is None and chosen.final:
        shape = _state_shape(v, q, num_seqs, chosen.state_layout)
        final = torch.empty(shape, dtype=_DTYPES[chosen.final_dtype], device=q.device)
    if checkpoint is None and chosen.checkpoints is not None:
        is_packed = seq_offsets is not None or host_offsets is not None
        every = 0 if isinstance(chosen.checkpoints, str) else chosen.checkpoints
        count = _num_checkpoints(q, is_packed, num_seqs, every, tensors[16])
        shape = _state_shape(v, q, count, chosen.state_layout)
        dtype = _checkpoint_dtype(chosen.checkpoint_dtype, chosen.final_dtype, q)
        checkpoint = torch.empty(shape, dtype=dtype, device=q.device)
    in_place = initial is not None and initial is final
    if in_place:
        options["initial"] = None
    _ops.forward_into.default(o, final, checkpoint, report, final_index, checkpoint_index, in_place, *rows, **options)
    return o, final, checkpoint


__all__ = ["SCHEMAS", "dispatch"]
