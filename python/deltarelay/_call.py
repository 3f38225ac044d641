"""The call into the library: through the extension if possible, else through ctypes, and the parts of both that are in
Python."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, NamedTuple

from . import _ctypes_call, _library, _plans, errors
from ._plans import ARGUMENTS, PLANS, Copies, Plan
from ._settings import Settings
from ._views import is_numpy, is_torch, torch_if_imported


class _Binding(NamedTuple):
    call: Any
    call_in_operator: Any
    name: str
    why: str


class _Thread(threading.local):
    # Copies, why a call was passed on, and the binding if it was another than usual; None if none of it is the case.
    noted: tuple[tuple[str, ...], str, str] | None = None
    plan: Plan | None = None  # without the extension, which keeps it itself


_thread = _Thread()
_core: Any = None
_numpy_known = False
_torch_known = False
_torch_table = ""  # why the extension cannot read torch's tensors; "" if it can


def _by_ctypes(why: str) -> _Binding:
    return _Binding(_ctypes_call.call, _ctypes_call.call_in_operator, "ctypes", why)


def _choose() -> _Binding:
    global _core
    wanted = os.environ.get("DELTARELAY_BINDING", "")
    if wanted not in ("", "extension", "ctypes"):
        raise ImportError(f"DELTARELAY_BINDING: expected 'extension' or 'ctypes', found {wanted!r}")
    if wanted == "ctypes":
        return _by_ctypes("DELTARELAY_BINDING asks for it")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return _by_ctypes("this Python runs without the GIL")
    try:
        from . import _core as core
    except ImportError as error:
        if wanted == "extension":
            raise
        return _by_ctypes(f"the extension cannot be imported: {error}")
    core.set_library(
        _library.address("dr_execute"), _library.address("dr_last_error"), PLANS, _plans.maker(core.Entry), errors.fail
    )
    _core = core
    return _Binding(core.call, core.call_in_operator, "extension", "")


_binding = _choose()


def _meet_numpy() -> None:
    global _numpy_known
    import numpy

    _numpy_known = True
    if _core is not None:
        _core.set_numpy(numpy.ndarray, numpy.empty)


def _meet_torch() -> None:
    """Torch's tensors are read through its table of C functions; without a table, through ctypes."""
    global _torch_known, _torch_table
    torch = torch_if_imported()
    _torch_known = True
    if _core is None:
        return
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        _torch_table = f"torch {torch.__version__} has no DLPack exchange table (2.10 has)"
    elif not _core.set_torch(
        table,
        torch.Tensor,
        torch.nn.Parameter,
        torch.is_grad_enabled,
        torch._C._len_torch_dispatch_stack,
        torch._C._is_tracing,
        torch.autograd.forward_ad,
        torch.autograd.graph.increment_version,
    ):
        _torch_table = f"torch {torch.__version__} has an exchange table of another version"


def binding() -> tuple[str, str]:
    """("extension" or "ctypes", reason); also for torch's tensors once one was seen."""
    if torch_if_imported() is not None and not _torch_known:
        _meet_torch()
    if _binding.name == "extension" and _torch_table:
        return "ctypes for torch, extension for NumPy", _torch_table
    return _binding.name, _binding.why


def call(settings: Settings, arguments: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """(o, final, checkpoint). Arguments in the order of `_plans.ARGUMENTS`, None for what is not given. One tuple: to
    unpack and pack twenty of them at each step of the way costs a third of a microsecond a time."""
    result = _binding.call(settings, *arguments)
    if type(result) is tuple:
        _thread.noted = None
        return result
    return _slow(settings, arguments, result, in_operator=False)


def call_in_operator(settings: Settings, arguments: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """The same, by an operator of torch: dispatch modes and traces have seen the call."""
    result = _binding.call_in_operator(settings, *arguments)
    if type(result) is tuple:
        _thread.noted = None
        return result
    return _slow(settings, arguments, result, in_operator=True)


def call_again(settings: Settings, arguments: tuple[Any, ...], in_operator: bool) -> tuple[Any, Any, Any]:
    """A call whose arguments were made readable."""
    return (call_in_operator if in_operator else call)(settings, arguments)


def _slow(settings: Settings, arguments: tuple[Any, ...], result: Any, in_operator: bool) -> tuple[Any, Any, Any]:
    if isinstance(result, Copies):
        return _with_copies(settings, arguments, result.names, in_operator)
    met = False
    if not _torch_known and any(map(is_torch, arguments)):
        _meet_torch()
        met = True
    if not _numpy_known and any(map(is_numpy, arguments)):
        _meet_numpy()
        met = True
    if met:
        return call_again(settings, arguments, in_operator)
    if _torch_table and _binding.name != "ctypes":
        by_ctypes = _ctypes_call.call_in_operator if in_operator else _ctypes_call.call
        result = by_ctypes(settings, *arguments)
        if type(result) is tuple:
            _thread.noted = None
            return result
        if isinstance(result, Copies):
            return _with_copies(settings, arguments, result.names, in_operator)
    from ._foreign import handle

    return handle(settings, arguments, in_operator)


def call_by_ctypes(settings: Settings, arguments: tuple[Any, ...]) -> tuple[Any, Any, Any] | None:
    """For tensors that only Python can read and that were looked at; None if they cannot be read."""
    copied: tuple[str, ...] = ()
    while True:
        result = _ctypes_call.call_plain(settings, *arguments)
        if not isinstance(result, Copies):
            break
        copied += result.names
        arguments = _copied(arguments, result.names)
    if result is NotImplemented:
        return None
    _thread.noted = (copied, "", "ctypes")
    return result


def _copied(arguments: tuple[Any, ...], names: tuple[str, ...]) -> tuple[Any, ...]:
    changed = list(arguments)
    for name in names:
        index = ARGUMENTS.index(name)
        value = changed[index]
        changed[index] = value.contiguous().clone() if is_torch(value) else value.copy(order="C")
    return tuple(changed)


def _with_copies(
    settings: Settings, arguments: tuple[Any, ...], names: tuple[str, ...], in_operator: bool
) -> tuple[Any, Any, Any]:
    """Makes rows contiguous if the library cannot read their layout, and records their names."""
    results = call_again(settings, _copied(arguments, names), in_operator)
    _thread.noted = (names, "", "")
    return results


def remember_plan(plan: Plan) -> None:
    if _core is not None:
        _core.remember(plan)
    _thread.plan = plan


def remember_stage(plan: Plan, copies: tuple[str, ...]) -> None:
    remember_plan(plan)
    _thread.noted = (copies, "", "ctypes")


def _last_plan() -> Plan | None:
    return _core.last_plan() if _core is not None else _thread.plan


class LastCall(NamedTuple):
    """What the calling thread's last call ran.

    Attributes:
        plan: its Plan; None if an adapter passed the call on.
        backend: the plan's backend, such as "cpu" or "cuda-sm90"; "" if the call was passed on.
        copies: names of arguments that were copied first, because the library cannot read their layout.
        binding: how tensors reached the library, "extension" or "ctypes".
        declined: why an adapter passed the call on, or "".
    """

    plan: Plan | None
    backend: str
    copies: tuple[str, ...]
    binding: str
    declined: str


def note_declined(reason: str) -> None:
    """For adapters: records why a call was passed on."""
    _thread.noted = ((), reason, "")


def last_call() -> LastCall | None:
    """The last call of the calling thread, or None if it has made none."""
    copies, declined, by = _thread.noted or ((), "", "")
    if declined:
        return LastCall(None, "", (), binding()[0], declined)
    plan = _last_plan()
    if plan is None:
        return None
    return LastCall(plan, plan.backend, copies, by or binding()[0], "")
