"""FLA's functions that can be ours: where FLA has them, their recorded parameters, and how an installed one differs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ._report import Drift

REQUIRED = inspect.Parameter.empty


class Hook(NamedTuple):
    """A function of FLA. `operation` and `name` are its key: two registries have a recompute_w_u_fwd."""

    operation: str  # the registry that FLA asks
    name: str
    module: str  # that has the function
    recorded: dict[str, Any]  # parameters and defaults in FLA's order, as of 0.6.0
    keywords: dict[str, Any]  # read from **kwargs by FLA, so that a release may as well name them
    added: frozenset[str]  # parameters that 0.5.2 has not
    whole: bool  # a public function; else a piece of its forward

    @property
    def key(self) -> tuple[str, str]:
        return self.operation, self.name

    @property
    def label(self) -> str:
        """In reports."""
        return self.name if self.whole else f"{self.operation}.{self.name}"


def _parameters(required: str, **defaults: Any) -> dict[str, Any]:
    return {**dict.fromkeys(required.split(), REQUIRED), **defaults}


_COMMON = _parameters(
    "q k v g beta", scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False
)
_WHOLE = (
    Hook(
        "kda",
        "chunk_kda",
        "fla.ops.kda",
        {
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
        {"A_log": None, "dt_bias": None, "chunk_size": 64},
        frozenset({"use_graph", "max_num_seqs"}),
        whole=True,
    ),
    Hook(
        "gated_delta_rule",
        "chunk_gated_delta_rule",
        "fla.ops.gated_delta_rule",
        {
            **_COMMON,
            "use_beta_sigmoid_in_kernel": False,
            "allow_neg_eigval": False,
            "state_v_first": False,
            "cu_seqlens": None,
            "cu_seqlens_cpu": None,
            "chunk_indices": None,
            "cp_context": None,
        },
        {"use_gate_in_kernel": False, "A_log": None, "dt_bias": None, "chunk_size": 64},
        frozenset({"chunk_indices"}),
        whole=True,
    ),
)


def _piece(operation: str, name: str, module: str, recorded: dict[str, Any], *added: str) -> Hook:
    return Hook(operation, name, module, recorded, {}, frozenset(added), whole=False)


_LISTS = {"cu_seqlens": None, "chunk_indices": None}
_PIECES = (
    _piece(
        "kda",
        "chunk_kda_fwd_intra",
        "fla.ops.kda.chunk_intra",
        _parameters(
            "q k v", gk=None, beta=None, scale=None, cu_seqlens=None, chunk_size=64, chunk_indices=None,
            safe_gate=False, lower_bound=None, disable_recompute=False, use_graph=False,
        ),
        "lower_bound",
        "use_graph",
    ),
    _piece(
        "kda",
        "recompute_w_u_fwd",
        "fla.ops.kda.wy_fast",
        _parameters("k v beta A gk", q=None, **_LISTS, use_graph=False),
        "use_graph",
    ),
    _piece(
        "gated_delta_rule",
        "chunk_gated_delta_rule_fwd_intra",
        "fla.ops.gated_delta_rule.chunk_fwd",
        _parameters("k v", g=None, beta=None, cu_seqlens=None, chunk_size=64, chunk_indices=None),
    ),
    _piece(
        "gated_delta_rule",
        "recompute_w_u_fwd",
        "fla.ops.gated_delta_rule.wy_fast",
        _parameters("k v beta A", g=None, **_LISTS),
    ),
    _piece(
        "common",
        "chunk_gated_delta_rule_fwd_h",
        "fla.ops.common.chunk_delta_h",
        _parameters(
            "k w u", g=None, gk=None, initial_state=None, output_final_state=False, chunk_size=64, save_new_value=True,
            state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, chunk_offsets=None,
        ),
        "chunk_offsets",
    ),
    _piece(
        "common",
        "chunk_fwd_o",
        "fla.ops.common.chunk_o",
        _parameters(
            "q k v h", g=None, g_gamma=None, scale=None, state_v_first=False, cu_seqlens=None, chunk_size=64,
            chunk_indices=None,
        ),
    ),
    _piece(
        "gla",
        "chunk_gla_fwd_o_gk",
        "fla.ops.gla.chunk",
        _parameters(
            "q v g A h scale", state_v_first=False, cu_seqlens=None, chunk_size=64, chunk_indices=None, use_graph=False
        ),
        "use_graph",
    ),
)  # fmt: skip
HOOKS: dict[tuple[str, str], Hook] = {hook.key: hook for hook in (*_WHOLE, *_PIECES)}


class Found(NamedTuple):
    """A function of the FLA that is installed."""

    names: tuple[str, ...]  # of its positional parameters, in order
    as_recorded: int  # number of them at the same position as in our function
    unknown: tuple[str, ...]  # parameters with defaults that were not recorded


def compare(hook: Hook, function: Callable[..., Any]) -> Found:
    """Raises Drift if a call could be misread. Otherwise names new parameters that a call can show; a piece with new
    ones is a drift too, because FLA sets them itself."""
    name, recorded, keywords = hook.label, hook.recorded, hook.keywords
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    found = {p.name: p.default for p in plain}
    positional = tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY)

    missing = sorted(set(recorded) - set(found) - hook.added)
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
    if new and not hook.whole:
        raise Drift(f"{name}: FLA's function has new parameters {', '.join(new)}, which are not known here")
    same = 0
    for mine, theirs in zip(recorded, positional):
        if mine != theirs:
            break
        same += 1
    return Found(positional, same, tuple(new))
