"""Plans: made once, found again by key, printable."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from . import _abi, _library, _problem
from ._settings import Settings, word
from ._types import Form
from ._views import TensorSpec, View, is_torch, numpy_dtype, view_of
from .errors import Invalid, WrongType

ARGUMENTS = (*_abi.POINTERS, "host_offsets")


class Plan:
    """How a call will be computed: backend, cuts of sequences, predicted cost.

    Made by `deltarelay.plan`; `deltarelay.last_call()` has the plan of the last call. Immutable. Notebooks show it as a
    picture of its schedule.

    Attributes:
        workspace_bytes: scratch that a call takes from the framework's allocator.
        device: device of the call's tensors ("cpu", "cuda:0"), or the model of a device that is not here.
    """

    def __init__(self, request: _problem.Request) -> None:
        self._library = _library.library()
        self._handle = ctypes.c_void_p()
        _library.check(
            self._library.dr_plan_create(
                ctypes.byref(request.problem), ctypes.byref(request.options), ctypes.byref(self._handle)
            )
        )
        size = ctypes.c_size_t()
        _library.check(self._library.dr_plan_workspace_bytes(self._handle, ctypes.byref(size)))
        self.workspace_bytes: int = size.value
        self.device: str = request.device

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.dr_plan_destroy(self._handle)

    @property
    def handle(self) -> int:
        """The dr_plan*, for callers of the C API. It lives as long as this object."""
        return self._handle.value or 0

    def describe(self, form: Form = "text") -> str:
        """Words ("text"), everything the planner decided ("json"), one line that fixes the bits ("signature"), or a
        picture of the modelled schedule ("svg")."""
        if form == "svg":
            from .plot import plan_svg

            return plan_svg(self)
        word("form", form, (*_abi.DESCRIBE, "svg"))
        needed = ctypes.c_size_t()
        describe = self._library.dr_plan_describe
        _library.check(describe(self._handle, _abi.DESCRIBE[form], None, 0, ctypes.byref(needed)))
        text = ctypes.create_string_buffer(needed.value)
        _library.check(describe(self._handle, _abi.DESCRIBE[form], text, needed, None))
        return text.value.decode()

    def to_dict(self) -> dict[str, Any]:
        """describe("json") as a dict."""
        return json.loads(self.describe("json"))

    @property
    def summary(self) -> dict[str, Any]:
        """The fields of dr_plan_summary: backend, isa, variant, chunk, segments, threads, predicted_ns, unsplit_ns,
        ..."""
        summary = _abi.Summary()
        _library.check(self._library.dr_plan_summarize(self._handle, ctypes.byref(summary)))
        values = {name: getattr(summary, name) for name, _ in summary._fields_ if name != "size"}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self.summary["backend"]

    @property
    def signature(self) -> str:
        """One line with everything that fixes the bits of the results: describe("signature")."""
        return self.describe("signature")

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def __reduce__(self) -> NoReturn:
        raise WrongType(
            "plan: expected an object that can be pickled, found a Plan, which is memory of this process: "
            "call deltarelay.plan with the same arguments where it is needed"
        )

    def __repr__(self) -> str:
        s = self.summary
        name = "/".join(part for part in (s["backend"], s["variant"] or s["isa"]) if part)
        time = f"{s['predicted_ns'] / 1000:.1f} us by the model"
        return f"<Plan {name} on {self.device}: {s['num_segments']} segments, {time}>"

    def _repr_svg_(self) -> str:  # notebooks
        return self.describe("svg")


class Entry:
    """What is cached of a plan without the extension: the same facts as _core.Entry."""

    def __init__(
        self,
        plan: Plan,
        handle: int,
        workspace_bytes: int,
        device: tuple[int, int],
        pointers: int,
        late: bool,
        outputs: tuple[tuple[Any, ...], ...],
    ) -> None:
        self.plan, self.handle, self.workspace_bytes = plan, handle, workspace_bytes
        self.device, self.pointers, self.late, self.outputs = device, pointers, late, outputs
        self.used = False

    def take_used(self) -> bool:
        used, self.used = self.used, False
        return used


class Copies(NamedTuple):
    """Marks calls in the cache that must copy arguments first."""

    names: tuple[str, ...]


def key_axes(value: Any, token_axis: int, tokens: int) -> list[Any]:
    """Lengths and strides as a key has them. See `token_key` and `stride_key` in binding/key.c; a `token_axis` below 0
    is none."""
    shape, strides = list(value.shape), list(value.stride() if is_torch(value) else value.strides)
    strides = [None if length == 1 else stride for length, stride in zip(shape, strides)]
    if 0 <= token_axis < len(shape):
        length = shape[token_axis]
        shape[token_axis] = _problem.bucket_end(length) if length == tokens else -1 - length
    return shape + strides


# Key (see binding/key.c and _ctypes_call.py): an entry, or Copies.
PLANS: dict[bytes, Any] = {}
# Engines with new lengths in every step fill the cache. A plan that is not cached costs a call 174 us (a loaded Xeon).
MOST_PLANS = 512
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A process that is forked while another thread holds the lock would wait for that thread, which it does not have.
os.register_at_fork(after_in_child=_new_lock)


def _make_room() -> None:
    """Drops the oldest plan that was not used since the last sweep."""
    while len(PLANS) >= MOST_PLANS:
        key = next(iter(PLANS))
        value = PLANS.pop(key)
        if getattr(value, "take_used", bool)():
            PLANS[key] = value


def keep(key: Any, value: Any) -> Any:
    """Puts a value into the cache."""
    with _lock:
        _make_room()
        PLANS[key] = value
    return value


def read_offsets(name: str, value: Any) -> list[int]:
    """Lengths in host memory, as offsets."""
    view = view_of(name, value)
    if view.dtype not in ("int32", "int64") or len(view.shape) != 1:
        raise Invalid(f"{name}: expected one axis of int32 or int64, found {list(view.shape)} of {view.dtype}")
    return value.tolist()


def _is_read_here(offsets: Any, view: View) -> bool:
    return view.device == "cpu" and not isinstance(offsets, TensorSpec)


def request_of(settings: Settings, arguments: tuple[Any, ...]) -> tuple[_problem.Request, dict[str, View]]:
    named = {name: value for name, value in zip(ARGUMENTS, arguments) if value is not None}
    host = named.pop("host_offsets", None)
    views = {name: view_of(name, value) for name, value in named.items()}
    return _problem.build(settings, views, offsets_on_host(settings, host, named, views)), views


def offsets_on_host(settings: Settings, host: Any, named: dict[str, Any], views: dict[str, View]) -> list[int] | None:
    """Lengths as offsets, if a plan may know them. `host` is the argument host_offsets."""
    if host is not None:
        views.pop("seq_offsets", None)  # is not read then
        return read_offsets("host_offsets", host)
    if "seq_offsets" not in views or settings.late_lengths:
        return None
    if not _is_read_here(named["seq_offsets"], views["seq_offsets"]):
        return None
    return read_offsets("seq_offsets", named["seq_offsets"])


def entry_of(settings: Settings, arguments: tuple[Any, ...], make: Callable[..., Any]) -> Any:
    """An entry, or Copies."""
    request, _ = request_of(settings, arguments)
    if request.copies:
        return Copies(request.copies)
    plan = Plan(request)
    as_torch = is_torch(arguments[0])
    outputs = tuple(
        (
            ARGUMENTS.index(output.name),
            *_problem.type_code(output.dtype),
            output.shape,
            output.dtype if as_torch else numpy_dtype(output.dtype),
        )
        for output in request.outputs
    )
    pointers = sum(1 << ARGUMENTS.index(name) for name in request.pointers)
    kind, _, ordinal = request.device.partition(":")
    device = (_abi.DEVICE_CUDA, int(ordinal)) if kind == "cuda" else (_abi.DEVICE_CPU, 0)
    return make(plan, plan.handle, plan.workspace_bytes, device, pointers, request.late, outputs)


def maker(entry_type: Callable[..., Any]) -> Callable[..., Any]:
    """make_plan(settings, arguments, key) for either way to call."""

    def make_plan(settings: Settings, arguments: tuple[Any, ...], key: bytes) -> Any:
        return keep(key, entry_of(settings, arguments, entry_type))

    return make_plan


__all__ = [
    "ARGUMENTS",
    "MOST_PLANS",
    "PLANS",
    "Copies",
    "Entry",
    "Plan",
    "keep",
    "key_axes",
    "maker",
    "offsets_on_host",
    "request_of",
]
