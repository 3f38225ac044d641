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
    """One that says it is FLA's, and looks at q as FLA's does."""
    scope: dict[str, Any] = {}
    exec(f"def {name}({parameters}, **kwargs):\n    q.shape\n    return 'FLA'", scope)
    return scope[name]


def _modules(kda: Any, gdn: Any, name: str, **registry: Any) -> dict[str, types.ModuleType]:
    contents = {
        "fla": {"__version__": "fake", "__path__": []},
        "fla.ops": {"__path__": []},
        "fla.ops.kda": {"chunk_kda": kda},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": gdn},
        name: {"BaseBackend": BaseBackend, **registry},
    }
    made = {}
    for path, values in contents.items():
        made[path] = types.ModuleType(path)
        vars(made[path]).update({key: value for key, value in values.items() if value is not None})
    return made


def older(kda: str = KDA_052, gdn: str = GDN_052, operations: tuple[str, ...] = ("kda", "gated_delta_rule")) -> Any:
    """0.5.2: registries by operation, in a class attribute, filled on first use."""
    made = {"kda": Registry(), "gated_delta_rule": Registry()}

    class BackendRegistry:
        _registries: ClassVar[dict[str, Registry]] = {}

        @classmethod
        def ensure_initialized(cls, operation: str) -> None:
            if operation in operations:
                cls._registries[operation] = made[operation]

        def register(self, backend: Any) -> None: ...

    functions = (_function("chunk_kda", kda), _function("chunk_gated_delta_rule", gdn))
    wrapped = (registry.wrap(function) for registry, function in zip(made.values(), functions))
    return _modules(*wrapped, "fla.ops.backends", BackendRegistry=BackendRegistry)


def newer(kda: str = KDA_060, gdn: str = GDN_060, disabled: bool = False, deaf: bool = False) -> Any:
    """0.6.0: a decorator; chunk_kda by itself, others by operation. `deaf`: registers and never asks."""
    by_function: dict[Any, Registry] = {}
    by_operation = {"gated_delta_rule": Registry(), "kda": Registry()}

    def register(entry_point: Any, *, backend: Any = None, verifier: Any = None, env_var: Any = None) -> Any:
        def decorator(implementation: Any) -> Any:
            if disabled and not isinstance(entry_point, str):
                return implementation
            named = isinstance(entry_point, str)
            registry = by_operation[entry_point] if named else by_function[inspect.unwrap(entry_point)]
            registry.register(implementation())
            return implementation

        return decorator

    functions = [_function("chunk_kda", kda), _function("chunk_gated_delta_rule", gdn)]
    by_function[functions[0]] = Registry()
    if not disabled and not deaf:
        functions = [by_function[functions[0]].wrap(functions[0]), by_operation["gated_delta_rule"].wrap(functions[1])]
    return _modules(*functions, "fla.backends", register=register, _DISPATCH_DISABLED=disabled)
