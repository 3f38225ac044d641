"""FLA's dispatch as recorded from 0.5.2 and 0.6.0, without FLA: what `deltarelay.fla` may rely on, and no more."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, ClassVar

KDA_052 = (
    "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
    "use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, "
    "lower_bound=None, disable_recompute=False, return_intermediate_states=False, state_v_first=False, "
    "cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None"
)
KDA_060 = KDA_052 + ", use_graph=False, max_num_seqs=None"
_GDN = (
    "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
    "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, "
    "cu_seqlens_cpu=None"
)
GDN_052, GDN_060 = _GDN + ", cp_context=None", _GDN + ", chunk_indices=None, cp_context=None"

# Pieces of the forward: (registry, name): (module, parameters). 0.5.2 asks no backend for the last one.
_INTRA = "q, k, v, gk=None, beta=None, scale=None, cu_seqlens=None, chunk_size=64, chunk_indices=None, safe_gate=False"
_KDA_W_U = "k, v, beta, A, gk, q=None, cu_seqlens=None, chunk_indices=None"
_H = (
    "k, w, u, g=None, gk=None, initial_state=None, output_final_state=False, chunk_size=64, save_new_value=True, "
    "state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None"
)
_GLA = "q, v, g, A, h, scale, state_v_first=False, cu_seqlens=None, chunk_size=64, chunk_indices=None"
Pieces = dict[tuple[str, str], tuple[str, str]]
PIECES_052: Pieces = {
    ("kda", "chunk_kda_fwd_intra"): ("fla.ops.kda.chunk_intra", _INTRA + ", disable_recompute=False"),
    ("kda", "recompute_w_u_fwd"): ("fla.ops.kda.wy_fast", _KDA_W_U),
    ("gated_delta_rule", "chunk_gated_delta_rule_fwd_intra"): (
        "fla.ops.gated_delta_rule.chunk_fwd",
        "k, v, g=None, beta=None, cu_seqlens=None, chunk_size=64, chunk_indices=None",
    ),
    ("gated_delta_rule", "recompute_w_u_fwd"): (
        "fla.ops.gated_delta_rule.wy_fast",
        "k, v, beta, A, g=None, cu_seqlens=None, chunk_indices=None",
    ),
    ("common", "chunk_gated_delta_rule_fwd_h"): ("fla.ops.common.chunk_delta_h", _H),
    ("common", "chunk_fwd_o"): (
        "fla.ops.common.chunk_o",
        "q, k, v, h, g=None, g_gamma=None, scale=None, state_v_first=False, cu_seqlens=None, chunk_size=64, "
        "chunk_indices=None",
    ),
    ("gla", "chunk_gla_fwd_o_gk"): ("fla.ops.gla.chunk", _GLA),
}
PIECES_060: Pieces = {
    **PIECES_052,
    ("kda", "chunk_kda_fwd_intra"): (
        "fla.ops.kda.chunk_intra",
        _INTRA + ", lower_bound=None, disable_recompute=False, use_graph=False",
    ),
    ("kda", "recompute_w_u_fwd"): ("fla.ops.kda.wy_fast", _KDA_W_U + ", use_graph=False"),
    ("common", "chunk_gated_delta_rule_fwd_h"): ("fla.ops.common.chunk_delta_h", _H + ", chunk_offsets=None"),
    ("gla", "chunk_gla_fwd_o_gk"): ("fla.ops.gla.chunk", _GLA + ", use_graph=False"),
}


class BaseBackend:
    backend_type, priority = "base", 5

    def verify(self, name: str, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
        try:
            return getattr(self, f"{name}_verifier")(*args, **kwargs)
        except Exception as error:
            return False, str(error)


class Registry:
    """Backends by type; a call goes to the first that is on and accepts."""

    def __init__(self) -> None:
        self.backends: dict[str, Any] = {}

    def register(self, backend: Any) -> None:
        self.backends[backend.backend_type] = backend

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for backend in sorted(self.backends.values(), key=lambda b: b.priority):
                if backend.is_available() and backend.is_enabled() and backend.verify(name, *args, **kwargs)[0]:
                    return getattr(backend, name)(*args, **kwargs)
            return function(*args, **kwargs)

        return wrapper


def _function(name: str, parameters: str) -> Callable[..., Any]:
    """One that says it is FLA's, and looks at its first tensor as FLA's does."""
    scope: dict[str, Any] = {}
    first = parameters.partition(",")[0]
    exec(f"def {name}({parameters}, **kwargs):\n    {first}.shape\n    return 'FLA'", scope)
    return scope[name]


def _modules(
    kda: Any, gdn: Any, pieces: dict[tuple[str, str], tuple[str, Any]], name: str, **registry: Any
) -> dict[str, types.ModuleType]:
    contents: dict[str, dict[str, Any]] = {
        "fla": {"__version__": "fake", "__path__": []},
        "fla.ops": {"__path__": []},
        "fla.ops.kda": {"chunk_kda": kda, "__path__": []},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": gdn, "__path__": []},
        "fla.ops.common": {"__path__": []},
        "fla.ops.gla": {"__path__": []},
        name: {"BaseBackend": BaseBackend, **registry},
    }
    for (_, function), (module, made) in pieces.items():
        contents.setdefault(module, {})[function] = made
    made = {}
    for path, values in contents.items():
        made[path] = types.ModuleType(path)
        vars(made[path]).update({key: value for key, value in values.items() if value is not None})
    return made


OPERATIONS = ("kda", "gated_delta_rule", "common")


def older(
    kda: str = KDA_052,
    gdn: str = GDN_052,
    operations: tuple[str, ...] = OPERATIONS,
    pieces: Pieces = PIECES_052,
) -> Any:
    """0.5.2: registries by operation, in a class attribute, filled on first use."""
    made = {name: Registry() for name in OPERATIONS}

    class BackendRegistry:
        _registries: ClassVar[dict[str, Registry]] = {}

        @classmethod
        def ensure_initialized(cls, operation: str) -> None:
            if operation in operations:
                cls._registries[operation] = made[operation]

        def register(self, backend: Any) -> None: ...

    whole = (
        made["kda"].wrap(_function("chunk_kda", kda)),
        made["gated_delta_rule"].wrap(_function("chunk_gated_delta_rule", gdn)),
    )
    functions = {}
    for (operation, name), (module, parameters) in pieces.items():
        function = _function(name, parameters)
        functions[operation, name] = (module, made[operation].wrap(function) if operation in made else function)
    return _modules(*whole, functions, "fla.ops.backends", BackendRegistry=BackendRegistry)


def newer(
    kda: str = KDA_060,
    gdn: str = GDN_060,
    disabled: bool = False,
    deaf: bool = False,
    pieces: Pieces = PIECES_060,
) -> Any:
    """0.6.0: a decorator; chunk_kda by itself, others by operation. `deaf`: registers and never asks."""
    by_function: dict[Any, Registry] = {}
    by_operation = {name: Registry() for name in (*OPERATIONS, "gla")}

    def register(entry_point: Any, *, backend: Any = None, verifier: Any = None, env_var: Any = None) -> Any:
        def decorator(implementation: Any) -> Any:
            if disabled and not isinstance(entry_point, str):
                return implementation
            named = isinstance(entry_point, str)
            registry = by_operation[entry_point] if named else by_function[inspect.unwrap(entry_point)]
            registry.register(implementation())
            return implementation

        return decorator

    whole = [_function("chunk_kda", kda), _function("chunk_gated_delta_rule", gdn)]
    by_function[whole[0]] = Registry()
    if not disabled and not deaf:
        whole = [by_function[whole[0]].wrap(whole[0]), by_operation["gated_delta_rule"].wrap(whole[1])]
    functions = {}
    for (operation, name), (module, parameters) in pieces.items():
        function = _function(name, parameters)
        functions[operation, name] = (module, function if disabled else by_operation[operation].wrap(function))
    return _modules(*whole, functions, "fla.backends", register=register, _DISPATCH_DISABLED=disabled)
