"""The recorded parameters of FLA's functions, and how an installed function differs from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ._report import Drift

REQUIRED = inspect.Parameter.empty

# In FLA's order. 0.5.2 has the same but for those in ADDED.
_COMMON = dict.fromkeys(("q", "k", "v", "g", "beta"), REQUIRED)
_COMMON |= {"scale": None, "initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": False}
RECORDED: dict[str, dict[str, Any]] = {
    "chunk_kda": {
        **_COMMON,
        "use_gate_in_kernel": False,
        "use_beta_sigmoid_in_kernel": False,
        "allow_neg_eigval": False,
        "safe_gate": False,
        "lower_bound": None,
        "disable_recompute": False,
        "return_intermediate_states": False,
        "state_v_first": False,
        "cu_seqlens": None,
        "cu_seqlens_cpu": None,
        "cp_context": None,
        "use_graph": False,
        "max_num_seqs": None,
    },
    "chunk_gated_delta_rule": {
        **_COMMON,
        "use_beta_sigmoid_in_kernel": False,
        "allow_neg_eigval": False,
        "state_v_first": False,
        "cu_seqlens": None,
        "cu_seqlens_cpu": None,
        "chunk_indices": None,
        "cp_context": None,
    },
}
ADDED = {"use_graph", "max_num_seqs", "chunk_indices"}  # in 0.6.0
# Read from **kwargs by FLA, so that a release may as well name them.
KEYWORDS = {
    "chunk_kda": {"A_log": None, "dt_bias": None, "chunk_size": 64},
    "chunk_gated_delta_rule": {"use_gate_in_kernel": False, "A_log": None, "dt_bias": None, "chunk_size": 64},
}


class Found(NamedTuple):
    """A function of the FLA that is installed."""

    names: tuple[str, ...]  # of its positional parameters, in order
    as_recorded: int  # number of them at the same position as in our function
    unknown: tuple[str, ...]  # parameters with defaults that were not recorded


def compare(name: str, function: Callable[..., Any]) -> Found:
    """Raises Drift if a call could be misread. Otherwise names new parameters that a call can show."""
    recorded, keywords = RECORDED[name], KEYWORDS[name]
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    found = {p.name: p.default for p in plain}
    positional = tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY)

    missing = sorted(set(recorded) - set(found) - ADDED)
    if missing:
        raise Drift(
            f"{name}: FLA's function has no parameter {', '.join(missing)} any more; its signature is {list(found)}"
        )
    new = [p for p in found if p not in recorded and p not in keywords]
    required = [p for p in new if found[p] is REQUIRED]
    if required:
        raise Drift(f"{name}: FLA's function wants {', '.join(required)}, which is not known here")
    known = {**recorded, **keywords}
    changed = [f"{p} ({known[p]!r} before, now {found[p]!r})" for p in found if p in known and found[p] != known[p]]
    if changed:
        raise Drift(f"{name}: FLA's defaults changed: {', '.join(changed)}")
    same = 0
    for mine, theirs in zip(recorded, positional):
        if mine != theirs:
            break
        same += 1
    return Found(positional, same, tuple(new))
