"""The call without the extension: for torch before 2.10, free-threaded Python, and comparison. Plans and results are
the same."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _abi, _library, errors
from ._plans import ARGUMENTS, PLANS, Entry, key_axes, maker
from ._settings import Settings
from ._views import (
    address_of,
    alignment_of,
    in_forward_ad,
    is_numpy,
    is_torch,
    is_watched,
    raise_versions,
    torch_dtype,
    torch_if_imported,
)
from .errors import Invalid

_make_plan = maker(Entry)
_Q = ARGUMENTS.index("q")
_O, _FINAL, _CHECKPOINT = (ARGUMENTS.index(name) for name in ("o", "final", "checkpoint"))
_WRITTEN = (_O, _FINAL, _CHECKPOINT, ARGUMENTS.index("report"))
_V = ARGUMENTS.index("v")
_TOKEN_ROWS = [ARGUMENTS.index(name) for name in ("q", "k", "v", "g", "beta", "o")]
_SEQ_OFFSETS, _HOST_OFFSETS = ARGUMENTS.index("seq_offsets"), ARGUMENTS.index("host_offsets")
_LIST, _POSITIONS = ARGUMENTS.index("checkpoint_offsets"), ARGUMENTS.index("checkpoint_positions")
_WORKSPACE_ALIGNMENT = 256


def is_plain(value: Any) -> bool:
    """Which tensors may be read directly: see binding/arguments.c."""
    torch = torch_if_imported()
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        on_memory = value.layout is torch.strided and value.device.type in ("cpu", "cuda")
        needs_grad = value.requires_grad and torch.is_grad_enabled()
        is_number = not (value.is_quantized or value.is_neg() or value.is_conj())
        return on_memory and is_number and not needs_grad
    return is_numpy(value) and not hasattr(value, "mask")


def _host_lengths(settings: Settings, arguments: tuple[Any, ...]) -> Any:
    if arguments[_HOST_OFFSETS] is not None or settings.late_lengths:
        return arguments[_HOST_OFFSETS]
    offsets = arguments[_SEQ_OFFSETS]
    return offsets if offsets is not None and (not is_torch(offsets) or offsets.device.type == "cpu") else None


def _key(settings: Settings, arguments: tuple[Any, ...]) -> Any:
    """See binding/key.c."""
    key: list[Any] = [settings.key]
    lengths = _host_lengths(settings, arguments)
    late = arguments[_SEQ_OFFSETS] is not None and lengths is None and settings.buckets
    q = arguments[_Q]
    token_axis = q.ndim - 3 if late and q is not None else -1
    tokens = q.shape[token_axis] if token_axis >= 0 else 0
    for index, value in enumerate(arguments):
        if value is None:
            continue
        device = value.device if is_torch(value) else "cpu"
        address = address_of(value)
        if address == 0 and 0 not in value.shape:
            raise RuntimeError("no memory")
        axes = key_axes(value, token_axis if index in _TOKEN_ROWS else -1, tokens)
        key.append((index, value.dtype, *axes, device, alignment_of(address)))
    if lengths is not None and lengths.ndim == 1:  # others are refused when a plan is made
        key.append(tuple(lengths.tolist()))
    return tuple(key)


def empty(framework: Any, shape: Any, dtype: Any, device: Any) -> Any:
    if framework is torch_if_imported():
        return framework.empty(shape, dtype=torch_dtype(dtype), device=device)
    return framework.empty(shape, dtype)


def stream_of(device: Any) -> int | None:
    if getattr(device, "type", "cpu") != "cuda":
        return None
    return torch_if_imported().cuda.current_stream(device).cuda_stream


def call(settings: Settings, *arguments: Any) -> Any:
    if is_torch(arguments[_Q]) and is_watched():
        return NotImplemented
    return call_in_operator(settings, *arguments)


def call_in_operator(settings: Settings, *arguments: Any) -> Any:
    """A call that watchers of torch have seen."""
    if is_torch(arguments[_Q]) and in_forward_ad():
        return NotImplemented
    return call_plain(settings, *arguments)


def call_plain(settings: Settings, *arguments: Any) -> Any:
    """A call of tensors that have no tangents."""
    given = [value for value in arguments if value is not None]
    if arguments[_Q] is None or not all(map(is_plain, given)):
        return NotImplemented
    as_torch = is_torch(arguments[_Q])
    if any(is_torch(value) != as_torch for value in arguments[:_HOST_OFFSETS] if value is not None):
        return NotImplemented
    if not as_torch and not all(arguments[i].flags.writeable for i in _WRITTEN if arguments[i] is not None):
        return NotImplemented
    try:
        key = _key(settings, arguments)
    except RuntimeError:  # of plain type but without memory: inside a transform of torch.func
        return NotImplemented
    entry = PLANS.get(key)
    if entry is None:
        entry = _make_plan(settings, arguments, key)
    elif isinstance(entry, Entry):
        entry.used = True
    if not isinstance(entry, Entry):
        return entry
    return _run(entry, list(arguments), as_torch)


def _check_list(offsets: Any, positions: Any) -> None:
    """See binding/core.c."""
    if offsets is None or (is_torch(offsets) and offsets.device.type != "cpu"):
        return
    for index, offset in enumerate(offsets.tolist()):
        if offset > len(positions):
            raise Invalid(
                f"checkpoint_offsets[{index}]: expected at most {len(positions)}, the length of checkpoint_positions, "
                f"found {offset}"
            )


def _run(entry: Entry, arguments: list[Any], as_torch: bool) -> tuple[Any, ...]:
    _check_list(arguments[_LIST], arguments[_POSITIONS])
    if as_torch:
        raise_versions(arguments[argument] for argument in _WRITTEN)
        framework, device = torch_if_imported(), arguments[_Q].device
    else:
        import numpy as framework

        device = None
    for argument, _, _, shape, dtype in entry.outputs:  # as _core.Entry takes them
        arguments[argument] = empty(framework, arguments[_V].shape if argument == _O else shape, dtype, device)
    tensors = _abi.Tensors()
    if entry.late:
        tensors.num_tokens = arguments[_Q].shape[-3]
    allocated = sum(1 << output[0] for output in entry.outputs)
    for index, name in enumerate(_abi.POINTERS):
        if (entry.pointers | allocated) >> index & 1:
            setattr(tensors, name, address_of(arguments[index]) or None)
    _remember(entry.plan)
    execute(entry.handle, tensors, entry.workspace_bytes, framework, device)
    return arguments[_O], arguments[_FINAL], arguments[_CHECKPOINT]


def execute(handle: int, tensors: _abi.Tensors, workspace_bytes: int, framework: Any, device: Any) -> None:
    """Runs a plan. The workspace comes from the framework's allocator."""
    workspace, memory = None, None
    if workspace_bytes > 0:
        workspace = empty(framework, workspace_bytes + _WORKSPACE_ALIGNMENT, "uint8", device)
        memory = -(-address_of(workspace) // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
    status = _library.library().dr_execute(handle, ctypes.byref(tensors), memory, workspace_bytes, stream_of(device))
    if status != 0:
        errors.fail(status, _library.last_error())


def _remember(plan: Any) -> None:
    from ._call import remember_plan

    remember_plan(plan)
