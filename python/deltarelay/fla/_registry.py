"""FLA's dispatch, found by looking: `fla.backends` (0.6.0) or `fla.ops.backends` (0.5.x)."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ._report import Drift

# function: (module that has it, operation it is dispatched by in the registries that go by name)
FUNCTIONS = {
    "chunk_kda": ("fla.ops.kda", "kda"),
    "chunk_gated_delta_rule": ("fla.ops.gated_delta_rule", "gated_delta_rule"),
}
_OFF = "FLA_DISABLE_BACKEND_DISPATCH=1 was set when FLA was imported: FLA asks no backend"


class Registry(NamedTuple):
    module: str
    base: type  # BaseBackend
    disabled: str  # why FLA asks nobody, or ""
    add: Callable[[str, type], str]  # (function name, class): how it was registered, in words


def function_of(name: str) -> Callable[..., Any]:
    module = importlib.import_module(FUNCTIONS[name][0])
    function = getattr(module, name, None)
    if function is None:
        raise Drift(f"{FUNCTIONS[name][0]} has no {name}")
    return function


def version() -> str:
    for name in ("fla-core", "flash-linear-attention"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(importlib.import_module("fla"), "__version__", "of unknown version"))


def _module_or_none(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def _needed(module: Any, *names: str) -> list[Any]:
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise Drift(
            f"{module.__name__} has no {', '.join(missing)}; found {sorted(n for n in vars(module) if n[0] != '_')}"
        )
    return [getattr(module, name) for name in names]


def _newer(module: Any) -> Registry:
    """A decorator over a class; chunk_kda has a registry of its own, known by the function."""
    base, register = _needed(module, "BaseBackend", "register")
    if not {"entry_point"} <= set(inspect.signature(register).parameters):
        raise Drift(f"fla.backends.register: expected (entry_point, ...), found {inspect.signature(register)}")

    def add(name: str, backend: type) -> str:
        if name == "chunk_kda":
            register(function_of(name))(backend)
            return f"{name}, by function"
        operation = FUNCTIONS[name][1]
        register(operation)(backend)
        return f"{name}, by operation {operation!r}"

    return Registry(module.__name__, base, _OFF if getattr(module, "_DISPATCH_DISABLED", False) else "", add)


def _older(module: Any) -> Registry:
    """An instance in the registry of the operation."""
    base, registries = _needed(module, "BaseBackend", "BackendRegistry")
    _needed(registries, "ensure_initialized", "_registries", "register")

    def add(name: str, backend: type) -> str:
        operation = FUNCTIONS[name][1]
        registries.ensure_initialized(operation)
        if operation not in registries._registries:
            raise Drift(f"fla.ops.backends has no registry {operation!r}; found {sorted(registries._registries)}")
        registries._registries[operation].register(backend())
        return f"{name}, by operation {operation!r}"

    return Registry(module.__name__, base, _OFF if getattr(module, "_DISPATCH_DISABLED", False) else "", add)


def find() -> Registry:
    if _module_or_none("fla") is None:
        raise ModuleNotFoundError(
            "fla: expected flash-linear-attention or fla-core to be installed, found neither", name="fla"
        )
    for name, read in (("fla.backends", _newer), ("fla.ops.backends", _older)):
        module = _module_or_none(name)
        if module is not None:
            return read(module)
    raise Drift(f"FLA {version()} has neither fla.backends (as 0.6.0) nor fla.ops.backends (as 0.5.2)")
