"""DeltaRelay as a backend of FLA's dispatch.

FLA asks a backend's verifier whether it takes a call and then calls the method of the function's name. Only the call
itself knows the full answer (devices, types, widths, lengths), and it knows before anything runs. So the verifier makes
the call, and the method returns its result: one pass, and no rules that could differ from those of the library.

`_signatures.HOOKS` lists the functions, by registry and name. Public functions must be as recorded, else `enable()`
raises. FLA's inner functions change from release to release: a piece that is not as recorded is left to FLA, with a
warning, and the others work with FLA's own.
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
from .._switches import switch
from ..errors import Invalid, Unsupported, WrongType
from . import _registry, _stages
from ._gdn import chunk_gated_delta_rule
from ._kda import chunk_kda
from ._report import UNREACHABLE, Drift, Report
from ._signatures import HOOKS, REQUIRED, Found, Hook, compare

Key = tuple[str, str]  # FLA's registry, the function's name
OURS: dict[Key, Callable[..., Any]] = {
    ("kda", "chunk_kda"): chunk_kda,
    ("gated_delta_rule", "chunk_gated_delta_rule"): chunk_gated_delta_rule,
    ("kda", "chunk_kda_fwd_intra"): _stages.chunk_kda_fwd_intra,
    ("kda", "recompute_w_u_fwd"): _stages.recompute_w_u_fwd_kda,
    ("gated_delta_rule", "chunk_gated_delta_rule_fwd_intra"): _stages.chunk_gated_delta_rule_fwd_intra,
    ("gated_delta_rule", "recompute_w_u_fwd"): _stages.recompute_w_u_fwd_gdn,
    ("common", "chunk_gated_delta_rule_fwd_h"): _stages.chunk_gated_delta_rule_fwd_h,
    ("common", "chunk_fwd_o"): _stages.chunk_fwd_o,
    ("gla", "chunk_gla_fwd_o_gk"): _stages.chunk_gla_fwd_o_gk,
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
        self.found: dict[Key, Found] = {}
        self.taken: collections.Counter[str] = collections.Counter()
        self.declined: collections.Counter[str] = collections.Counter()
        self.logged: set[str] = set()
        # (name, function, args, kwargs) -> result: a test's own way to run calls whose tensors require grad.
        self.train: Callable[..., tuple[Any, ...]] | None = None


state = _State()
_TAKEN = (True, None)


def verify(key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, str | None]:
    """(was the call taken?, why not). `take` returns the result."""
    if args and type(args[0]) is _Probe:
        _thread.result = args[0]
        return _TAKEN
    found = state.found[key]
    if len(args) > found.as_recorded:
        kwargs = {**kwargs, **dict(zip(found.names[found.as_recorded :], args[found.as_recorded :]))}
        args = args[: found.as_recorded]
    try:
        _thread.result = OURS[key](*args, **kwargs)
    except (Invalid, Unsupported, WrongType, TypeError, DeprecationWarning) as error:
        return _second_look(key, args, kwargs, error)
    except (
        Exception
    ) as error:  # of the device or the library: FLA would take it for a refusal, so it is raised by `take`
        _thread.error = error
    return _taken(key)


def _taken(key: Key) -> tuple[bool, str | None]:
    with state.lock:
        state.taken[HOOKS[key].label] += 1
    return _TAKEN


def _second_look(key: Key, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> tuple[bool, str | None]:
    hook = HOOKS[key]
    if hook.whole and isinstance(error, Unsupported) and state.train is not None and _wants_grad(args, kwargs):
        try:
            _thread.result = state.train(hook.name, OURS[key], args, kwargs)
        except (Invalid, Unsupported, WrongType) as second:
            return _decline(key, str(second))
        return _taken(key)
    unset = [name for name in kwargs if name not in _names_of(key) and (kwargs[name] is None or kwargs[name] is False)]
    if unset:  # FLA and its callers add keywords in every release; one that is not used changes nothing
        for name in unset:
            _log_once(f"{hook.label}: the keyword {name}={kwargs[name]!r} is not known here and was left out")
        return verify(key, args, {name: value for name, value in kwargs.items() if name not in unset})
    return _decline(key, str(error))


def _names_of(key: Key) -> tuple[str, ...]:
    code = OURS[key].__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _wants_grad(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(getattr(value, "requires_grad", False) for value in (*args, *kwargs.values()))


def _decline(key: Key, reason: str) -> tuple[bool, str]:
    _thread.result = None
    text = f"{HOOKS[key].label}: {reason}"
    _call.note_declined(text)
    with state.lock:
        if len(state.declined) < 256:  # reasons hold shapes: a program may have many
            state.declined[text] += 1
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


def _methods(hook: Hook) -> dict[str, Callable[..., Any]]:
    def verifier(self: Any, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
        return verify(hook.key, args, kwargs)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return take()

    return {f"{hook.name}_verifier": verifier, hook.name: method}


def _backend_class(base: type, hooks: list[Hook]) -> type:
    """FLA's way to us, for the functions of one registry. `deltarelay.fla.disable()` switches it off."""
    members: dict[str, Any] = {
        "__module__": __name__,
        "backend_type": "deltarelay",
        "package_name": None,
        "env_var": None,
        "priority": PRIORITY,
        "is_available": classmethod(lambda cls: True),
        "is_enabled": classmethod(lambda cls: state.enabled),
    }
    for hook in hooks:
        members.update(_methods(hook))
    return type("DeltaRelayBackend", (base,), members)


def _arrives(hook: Hook) -> bool:
    """Does FLA's function reach us? Calls it to find out."""
    probes = [_Probe()] * sum(default is REQUIRED for default in hook.recorded.values())
    try:
        return _registry.function_of(hook)(*probes) is probes[0]
    except Exception:  # FLA's own function saw the probe
        return False


def _register() -> Report:
    registry = _registry.find()
    problems = [registry.disabled] if registry.disabled else []
    unreachable = list(UNREACHABLE)
    state.found = {}
    for key, hook in HOOKS.items():
        try:
            if not hook.whole and not registry.disabled and not _registry.is_dispatched(hook):
                unreachable.append(f"{hook.label}: FLA {_registry.version()} asks no backend there")
                continue
            state.found[key] = found = compare(hook, _registry.function_of(hook))
        except Drift as drift:
            if hook.whole:
                raise
            problems.append(f"{drift}; this piece is left to FLA")
            continue
        if found.unknown:
            new = ", ".join(found.unknown)
            text = f"{hook.label}: FLA's parameters {new} are not known here; calls that use them are declined"
            problems.append(text)
    registered = () if registry.disabled else _add_all(registry, problems)
    return Report(
        bool(registered), _registry.version(), registry.module, registered, tuple(problems), tuple(unreachable)
    )


def _add_all(registry: _registry.Registry, problems: list[str]) -> tuple[str, ...]:
    """Registers what was found and checks that FLA asks us. While we are enabled FLA asks us, so a public function that
    does not arrive switches all of it off again."""
    places: dict[str, list[Hook]] = {}
    for key in state.found:
        places.setdefault(registry.place(HOOKS[key]), []).append(HOOKS[key])
    registered = []
    state.enabled = True
    try:
        for place, hooks in places.items():
            registered += _add_place(registry, place, hooks, problems)
    except BaseException:
        state.enabled = False
        raise
    return tuple(registered)


def _add_place(registry: _registry.Registry, place: str, hooks: list[Hook], problems: list[str]) -> list[str]:
    version = _registry.version()
    labels = ", ".join(hook.label for hook in hooks)
    try:
        registry.add(hooks, _backend_class(registry.base, hooks))
    except Drift:
        if any(hook.whole for hook in hooks):
            raise
        problems.append(f"{labels}: FLA {version} has no registry for them; these pieces are left to FLA")
        return []
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Drift(f"{labels}: FLA {version} could not register them: {error!r}") from error
    registered = []
    for hook in hooks:
        if _arrives(hook):
            registered.append(f"{hook.label}, {place}")
            continue
        text = f"{hook.label}: registered with {registry.module}, but FLA {version} does not ask us"
        if hook.whole:
            raise Drift(text)
        problems.append(text)
    return registered


def enable() -> Report:
    """Registers DeltaRelay with FLA's dispatch, ahead of FLA's own backends. May be called at any time, and again.

    Functions that were imported from FLA by name before see it too. With DELTARELAY_FLA=0 (false, no, off) in the
    environment it does nothing.

    Returns:
        A report; printed, it says what was registered and what cannot reach us.
    Raises:
        ModuleNotFoundError: FLA is not installed.
        Drift: FLA changed in a way that could make a call be misread.
    """
    if switch("DELTARELAY_FLA") is False:
        return Report(False, problems=(f"DELTARELAY_FLA={os.environ['DELTARELAY_FLA']} is set",))
    if not state.report.registry:
        state.report = _register()
        for problem in state.report.problems:
            if problem != _registry.OFF:
                warnings.warn(f"deltarelay.fla: {problem}", RuntimeWarning, stacklevel=2)
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
