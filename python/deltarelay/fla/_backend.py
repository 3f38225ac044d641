"""DeltaRelay as a backend of FLA's dispatch.

FLA asks a backend's verifier whether it takes a call and then calls the method of the function's name. Only the call
itself knows the full answer (devices, types, widths, lengths), and it knows before anything runs. So the verifier makes
the call, and the method returns its result: one pass, and no rules that could differ from those of the library.
"""

from __future__ import annotations

import collections
import logging
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from .. import _call
from ..errors import Invalid, Unsupported, WrongType
from . import _registry
from ._gdn import chunk_gated_delta_rule
from ._kda import chunk_kda
from ._report import Drift, Report
from ._signatures import RECORDED, Found, compare

OURS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "chunk_kda": chunk_kda,
    "chunk_gated_delta_rule": chunk_gated_delta_rule,
}
PRIORITY = 2  # FLA asks in rising order; its own have 3 and 5
_log = logging.getLogger("deltarelay.fla")


class _Thread(threading.local):
    result: Any = None
    error: BaseException | None = None


_thread = _Thread()


class _Probe:
    """Passed through FLA instead of tensors, to see whether a call arrives here."""


class _State:
    """Of this process."""

    def __init__(self) -> None:
        self.enabled = False
        self.lock = threading.Lock()
        self.report = Report(False)
        self.found: dict[str, Found] = {}
        self.taken: collections.Counter[str] = collections.Counter()
        self.declined: collections.Counter[str] = collections.Counter()
        self.logged: set[str] = set()
        # (name, function, args, kwargs) -> result: a test's own way to run calls whose tensors require grad.
        self.train: Callable[..., tuple[Any, ...]] | None = None


state = _State()
_TAKEN = (True, None)


def verify(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, str | None]:
    """(was the call taken?, why not). `take` returns the result."""
    found = state.found[name]
    if len(args) > found.as_recorded:
        kwargs = {**kwargs, **dict(zip(found.names[found.as_recorded :], args[found.as_recorded :]))}
        args = args[: found.as_recorded]
    try:
        _thread.result = OURS[name](*args, **kwargs)
    except (Invalid, Unsupported, WrongType, TypeError, DeprecationWarning) as error:
        return _second_look(name, args, kwargs, error)
    except (
        Exception
    ) as error:  # of the device or the library: FLA would take it for a refusal, so it is raised by `take`
        _thread.error = error
    with state.lock:
        state.taken[name] += 1
    return _TAKEN


def _second_look(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> tuple[bool, str | None]:
    if args and type(args[0]) is _Probe:
        _thread.result = args[0]
        return _TAKEN
    if isinstance(error, Unsupported) and state.train is not None and _wants_grad(args, kwargs):
        try:
            _thread.result = state.train(name, OURS[name], args, kwargs)
        except (Invalid, Unsupported, WrongType) as second:
            return _decline(name, str(second))
        with state.lock:
            state.taken[name] += 1
        return _TAKEN
    unset = [key for key in kwargs if key not in _names_of(name) and (kwargs[key] is None or kwargs[key] is False)]
    if unset:  # FLA and its callers add keywords in every release; one that is not used changes nothing
        for key in unset:
            _log_once(f"{name}: the keyword {key}={kwargs[key]!r} is not known here and was left out")
        return verify(name, args, {key: value for key, value in kwargs.items() if key not in unset})
    return _decline(name, str(error))


def _names_of(name: str) -> tuple[str, ...]:
    function = OURS[name]
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _wants_grad(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(getattr(value, "requires_grad", False) for value in (*args, *kwargs.values()))


def _decline(name: str, reason: str) -> tuple[bool, str]:
    _thread.result = None
    _call.note_declined(f"{name}: {reason}")
    with state.lock:
        if len(state.declined) < 256:  # reasons hold shapes: a program may have many
            state.declined[f"{name}: {reason}"] += 1
        else:
            state.declined["(other reasons)"] += 1
    return False, reason


def take() -> Any:
    result, error = _thread.result, _thread.error
    _thread.result = _thread.error = None
    if error is not None:
        raise error
    return result


def _log_once(text: str) -> None:
    if text not in state.logged:
        state.logged.add(text)
        _log.info(text)


def _backend_class(base: type) -> type:
    class DeltaRelayBackend(base):  # type: ignore[misc, valid-type]
        """FLA's way to us. `deltarelay.fla.disable()` switches it off."""

        backend_type = "deltarelay"
        package_name = None
        env_var = None
        priority = PRIORITY

        @classmethod
        def is_available(cls) -> bool:
            return True

        @classmethod
        def is_enabled(cls) -> bool:
            return state.enabled

        def chunk_kda_verifier(self, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
            return verify("chunk_kda", args, kwargs)

        def chunk_kda(self, *args: Any, **kwargs: Any) -> Any:
            return take()

        def chunk_gated_delta_rule_verifier(self, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
            return verify("chunk_gated_delta_rule", args, kwargs)

        def chunk_gated_delta_rule(self, *args: Any, **kwargs: Any) -> Any:
            return take()

    return DeltaRelayBackend


def _arrives(name: str) -> bool:
    """Does FLA's function reach us? Calls it to find out."""
    probe = _Probe()
    try:
        return _registry.function_of(name)(probe, probe, probe, probe, probe) is probe
    except Exception:  # FLA's own function saw the probe
        return False


def _register() -> Report:
    registry = _registry.find()
    functions = {name: _registry.function_of(name) for name in RECORDED}
    state.found = {name: compare(name, function) for name, function in functions.items()}
    problems = [registry.disabled] if registry.disabled else []
    for name, found in state.found.items():
        if found.unknown:
            new = ", ".join(found.unknown)
            problems.append(f"{name}: FLA's parameters {new} are not known here; calls that use them are declined")
            warnings.warn(f"deltarelay.fla: {problems[-1]}", RuntimeWarning, stacklevel=4)
    registered = () if registry.disabled else _add_all(registry)
    return Report(bool(registered), _registry.version(), registry.module, registered, tuple(problems))


def _add_all(registry: _registry.Registry) -> tuple[str, ...]:
    """Registers both functions and checks that FLA asks us. All or nothing: FLA asks us while we are enabled."""
    backend = _backend_class(registry.base)
    registered = []
    state.enabled = True
    try:
        for name in RECORDED:
            try:
                registered.append(registry.add(name, backend))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise Drift(f"{name}: FLA {_registry.version()} could not register it: {error!r}") from error
            if not _arrives(name):
                raise Drift(f"{name}: registered with {registry.module}, but FLA {_registry.version()} does not ask us")
    except BaseException:
        state.enabled = False
        raise
    return tuple(registered)


def enable() -> Report:
    """Registers DeltaRelay with FLA's dispatch, ahead of FLA's own backends. May be called at any time, and again.

    Functions that were imported from FLA by name before see it too. With DELTARELAY_FLA=0 in the environment it does
    nothing.

    Returns:
        A report; printed, it says what was registered and what cannot reach us.
    Raises:
        ModuleNotFoundError: FLA is not installed.
        Drift: FLA changed in a way that could make a call be misread.
    """
    if os.environ.get("DELTARELAY_FLA") == "0":
        return Report(False, problems=("DELTARELAY_FLA=0 is set",))
    if not state.report.registry:
        state.report = _register()
    state.enabled = bool(state.report.registered)
    return status()


def disable() -> Report:
    """FLA's calls go where they went before. The registration stays but is no longer asked."""
    state.enabled = False
    return status()


def status() -> Report:
    """What is registered, and the calls that were taken and declined so far."""
    with state.lock:
        taken, declined = dict(state.taken), dict(state.declined)
    r = state.report
    return Report(state.enabled, r.fla_version, r.registry, r.registered, r.problems, r.unreachable, taken, declined)
