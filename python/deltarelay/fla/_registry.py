"""FLA's dispatch, found by looking: `fla.backends` (0.6.0) or `fla.ops.backends` (0.5.x)."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ._report import Drift
from ._signatures import Hook

OFF = "FLA_DISABLE_BACKEND_DISPATCH=1 was set when FLA was imported: FLA asks no backend"


class Registry(NamedTuple):
    module: str
    base: type  # BaseBackend
    disabled: str  # why FLA asks nobody, or ""
    place: Callable[[Hook], str]  # which of FLA's registries has a function, in words; hooks of one place share a class
    add: Callable[[list[Hook], type], None]  # (hooks of one place, class)


def function_of(hook: Hook) -> Callable[..., Any]:
    try:
        module = importlib.import_module(hook.module)
    except ModuleNotFoundError as error:
        raise Drift(f"{hook.label}: FLA {version()} has no {hook.module}") from error
    function = getattr(module, hook.name, None)
    if function is None:
        raise Drift(f"{hook.module} has no {hook.name}")
    return function


def is_dispatched(hook: Hook) -> bool:
    """Does FLA ask anybody? Its dispatch wraps the function."""
    function = function_of(hook)
    return inspect.unwrap(function) is not function


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

    def place(hook: Hook) -> str:
        return "by function" if hook.name == "chunk_kda" else f"by operation {hook.operation!r}"

    def add(hooks: list[Hook], backend: type) -> None:
        register(function_of(hooks[0]) if place(hooks[0]) == "by function" else hooks[0].operation)(backend)

    return Registry(module.__name__, base, OFF if getattr(module, "_DISPATCH_DISABLED", False) else "", place, add)


def _older(module: Any) -> Registry:
    """An instance in the registry of the operation."""
    base, registries = _needed(module, "BaseBackend", "BackendRegistry")
    _needed(registries, "ensure_initialized", "_registries", "register")

    def place(hook: Hook) -> str:
        return f"by operation {hook.operation!r}"

    def add(hooks: list[Hook], backend: type) -> None:
        operation = hooks[0].operation
        registries.ensure_initialized(operation)
        if operation not in registries._registries:
            raise Drift(f"fla.ops.backends has no registry {operation!r}; found {sorted(registries._registries)}")
        registries._registries[operation].register(backend())

    return Registry(module.__name__, base, OFF if getattr(module, "_DISPATCH_DISABLED", False) else "", place, add)


def find() -> Registry:
    package = _module_or_none("fla")
    if package is None:
        raise ModuleNotFoundError(
            "fla: expected flash-linear-attention or fla-core to be installed, found neither", name="fla"
        )
    if getattr(package, "__file__", "") is None and not hasattr(package, "ops"):
        folders = ", ".join(package.__path__)
        raise ModuleNotFoundError(
            f"fla: expected flash-linear-attention or fla-core to be installed, found a folder of that name without "
            f"__init__.py: {folders}",
            name="fla",
        )
    for name, read in (("fla.backends", _newer), ("fla.ops.backends", _older)):
        module = _module_or_none(name)
        if module is not None:
            return read(module)
    raise Drift(f"FLA {version()} has neither fla.backends (as 0.6.0) nor fla.ops.backends (as 0.5.2)")
