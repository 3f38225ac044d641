"""Shared by both functions: how FLA's arguments become settings, and errors with FLA's names."""

from __future__ import annotations

import numbers
import re
import warnings
from typing import Any, NamedTuple, NoReturn

from .. import _call
from .._problem import CHUNK
from .._settings import Settings, Values, settings
from ..errors import Error, Invalid, Unsupported, WrongType


class Chosen(NamedTuple):
    """Settings from the arguments that are no tensors."""

    settings: Settings | Values
    raw_gate: bool  # A_log and dt_bias are read


class _Unset:
    """Default of arguments that must not be passed."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Any = _Unset()

# Emptied when full, like `_settings._known`: a program that changes scale in every call must not grow.
MOST = 1024


def check_flags(**flags: Any) -> None:
    """FLA accepts anything with a truth value. A tensor has one too, but reading it waits for the device: refused."""
    for name, value in flags.items():
        if not isinstance(value, (bool, int, type(None))):
            raise WrongType(f"{name}: expected True or False, found {type(value).__name__}")


def check_number(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, (int, float, numbers.Real)) or isinstance(value, bool)):
        raise WrongType(f"{name}: expected a number or None, found {type(value).__name__}")


def check_chunk_size(value: Any, sizes: tuple[int, ...], with_states: bool = False) -> None:
    """Results do not depend on the chunk; states between chunks do."""
    if value not in sizes:
        raise Invalid(f"chunk_size: expected {', '.join(map(str, sizes[:-1]))} or {sizes[-1]}, found {value!r}")
    if with_states and value != CHUNK:
        raise Unsupported(f"chunk_size: expected {CHUNK} with return_intermediate_states=True, found {value!r}")


def choose(
    rule: str,
    scale: float | None,
    l2norm: bool,
    raw_gate: bool,
    lower_bound: float | None,
    beta_sigmoid: bool,
    twice: bool,
    state_v_first: bool,
    final: bool,
    states: bool = False,
    *,
    compiling: bool,
) -> Chosen:
    """`compiling`: unchecked values, which torch.compile can trace; the operators make settings of them."""
    check_number("scale", scale)
    check_number("lower_bound", lower_bound)
    if twice and not beta_sigmoid:
        raise Invalid(
            "allow_neg_eigval: expected False without use_beta_sigmoid_in_kernel=True, found True "
            "(beta that is no logit is doubled by the caller)"
        )
    gate = "log" if not raw_gate else "softplus" if lower_bound is None else "bounded"
    beta = "value" if not beta_sigmoid else "twice_logit" if twice else "logit"
    values = {
        "scale": None if scale is None else float(scale),
        "l2norm": bool(l2norm),
        "gate": gate,
        "lower_bound": float(lower_bound) if gate == "bounded" and lower_bound is not None else None,
        "beta": beta,
        "state_layout": "value_major" if state_v_first else "key_major",
        "final": bool(final),
        "checkpoints": "chunks" if states else None,
        "checkpoint_dtype": "q" if states else None,
    }
    chosen = Values(rule, **values)
    return Chosen(chosen if compiling else settings(*chosen), bool(raw_gate))


def keep(known: dict[Any, Chosen], key: Any, chosen: Chosen) -> Chosen:
    if len(known) >= MOST:
        known.clear()
    known[key] = chosen
    return chosen


def renamed_layout(state_v_first: bool, transpose_state_layout: bool, compiling: bool) -> bool:
    """The deprecated name of state_v_first."""
    if state_v_first:
        raise Invalid("transpose_state_layout: expected not to be given with state_v_first, whose old name it is")
    if not compiling:  # a warning breaks a traced graph
        warnings.warn(
            "transpose_state_layout is deprecated and renamed to state_v_first", DeprecationWarning, stacklevel=3
        )
    return bool(transpose_state_layout)


def refuse_context(found: Any) -> NoReturn:
    raise Unsupported(
        f"cp_context: expected None, found {type(found).__name__}: context parallelism over several GPUs is not "
        "supported (inside one GPU it is automatic)"
    )


_NAMES = {"a_log": "A_log", "seq_offsets": "cu_seqlens", "host_offsets": "cu_seqlens_cpu", "initial": "initial_state"}
_WORDS = re.compile(r"\b(a_log|seq_offsets|host_offsets)\b|^(initial)(?=:)")


def in_fla_words(error: Error) -> Error:
    """The same error with the names this caller used."""
    text = _WORDS.sub(lambda found: _NAMES[found.group(0)], str(error))
    text = text.replace("with gate='softplus'", "with use_gate_in_kernel=True and no lower_bound")
    return type(error)(text)


_NONE8 = (None,) * 8  # initial_index to checkpoint_positions


def run(
    chosen: Chosen,
    compiling: bool,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    a_log: Any,
    dt_bias: Any,
    initial: Any,
    offsets: Any,
    host_offsets: Any,
) -> tuple[Any, Any, Any]:
    """(o, final, h). The order is that of `_plans.ARGUMENTS`."""
    if not chosen.raw_gate:
        a_log = dt_bias = None
    tensors = (q, k, v, g, beta, a_log, dt_bias, None, initial, *_NONE8, offsets, None, host_offsets)
    if compiling:
        from .. import torch_ops

        return torch_ops.dispatch(chosen.settings, tensors)
    try:
        return _call.call(chosen.settings, tensors)
    except Error as error:
        raise in_fla_words(error) from None
