"""The call of a stage, through ctypes: plans by everything they read, outputs from the framework's allocator."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, NamedTuple

from . import _abi, _foreign, _stage_request
from ._ctypes_call import empty, execute, is_plain
from ._plans import PLANS, Copies, Plan, keep, key_axes, offsets_on_host
from ._settings import Settings
from ._stage_axes import features_of
from ._stage_request import Wish, most_chunks
from ._views import (
    address_of,
    alignment_of,
    in_forward_ad,
    is_torch,
    numpy_dtype,
    raise_versions,
    torch_if_imported,
    view_of,
)
from .errors import Invalid, Unsupported

_OTHERS = ("o", "final")
RESULTS = (*_abi.INTERMEDIATES, *_OTHERS)
_LISTS = ("host_offsets", "seq_offsets")


class _Entry:
    """What is cached of a plan: see _plans.Entry."""

    def __init__(self, plan: Plan, request: _stage_request.Request) -> None:
        self.plan, self.handle, self.workspace_bytes = plan, plan.handle, plan.workspace_bytes
        self.late, self.outputs, self.first, self.pointers = (
            request.late,
            request.outputs,
            request.first,
            request.pointers,
        )
        self.num_seqs, self.num_chunks = request.sizes.num_seqs, request.num_chunks
        self.used = False

    def take_used(self) -> bool:
        used, self.used = self.used, False
        return used


class _Refusal(NamedTuple):
    """Marks calls in the cache that no backend takes: FLA asks again in every step."""

    reason: str


class _Shape(NamedTuple):
    """First axes of the outputs of one call."""

    leading: tuple[int, ...]
    num_chunks: int  # of all sequences, or as many as there could be
    num_seqs: int

    def of(self, rows: str) -> tuple[int, ...]:
        if rows == "tokens":
            return self.leading
        return (self.num_chunks if rows == "chunks" else self.num_seqs,)


def _host_lengths(settings: Settings, named: dict[str, Any]) -> Any:
    if "host_offsets" in named or settings.late_lengths:
        return named.get("host_offsets")
    offsets = named.get("seq_offsets")
    return offsets if offsets is not None and (not is_torch(offsets) or offsets.device.type == "cpu") else None


def _key(wish: Wish, settings: Settings, named: dict[str, Any]) -> tuple[Any, ...]:
    """As of other calls (binding/key.c); those begin with bytes or are bytes."""
    key: list[Any] = [wish, settings.key]
    lengths = _host_lengths(settings, named)
    late = "seq_offsets" in named and lengths is None
    tokens = None  # of the first tensor with a row for each
    for name, value in named.items():
        if name in _LISTS and lengths is not None:
            key.append((name, value.dtype, value.ndim))
            continue
        axis = value.ndim - features_of(name, settings.rule) - 1
        axis = axis if late and name != "states" and 0 <= axis < value.ndim - 1 else -1
        if axis >= 0 and tokens is None:
            tokens = value.shape[axis]
        axes = key_axes(value, axis, tokens or 0)
        if late and name == "states":
            axes[:1] = [-1]  # `_shape` compares them with the chunks
        device = value.device if is_torch(value) else "cpu"
        key.append((name, value.dtype, *axes, device, alignment_of(address_of(value))))
    if lengths is not None and lengths.ndim == 1:  # others are refused when a plan is made
        key.append(tuple(lengths.tolist()))
    return tuple(key)


def _make(wish: Wish, settings: Settings, named: dict[str, Any]) -> Any:
    """An entry, Copies, or a refusal."""
    views = {name: view_of(name, value) for name, value in named.items() if name != "host_offsets"}
    offsets = offsets_on_host(settings, named.get("host_offsets"), named, views)
    request = _stage_request.build(wish, settings, views, offsets)
    if request.copies:
        return Copies(request.copies)
    try:
        return _Entry(Plan(request), request)
    except Unsupported as error:
        return _Refusal(str(error))


def _copy(value: Any) -> Any:
    return value.contiguous().clone() if is_torch(value) else value.copy(order="C")


def _is_readable(named: dict[str, Any]) -> bool:
    if not all(map(is_plain, named.values())) or len(set(map(is_torch, named.values()))) > 1:
        return False
    if torch_if_imported() is not None and (_foreign.is_captured() or in_forward_ad()):
        return False
    written = (named[name] for name in ("o", "final", "report") if name in named)
    return all(is_torch(value) or value.flags.writeable for value in written)


def call(wish: Wish, settings: Settings, tensors: dict[str, Any], num_chunks: int | None = None) -> tuple[Any, ...]:
    """Results in the order of RESULTS, None for what was not wanted."""
    named = {name: value for name, value in tensors.items() if value is not None}
    if not any(name not in _LISTS for name in named):
        _stage_request.build(wish, settings, {}, None)  # raises: something is missing
    if not _is_readable(named):
        named = _foreign.readable(named)
    copied: tuple[str, ...] = ()
    while True:
        try:
            key = _key(wish, settings, named)
        except RuntimeError:  # of plain type but without memory: inside a transform of torch.func
            _foreign.readable(named)
            raise
        entry = PLANS.get(key)
        if entry is None:
            entry = keep(key, _make(wish, settings, named))
        if isinstance(entry, _Entry):
            break
        if isinstance(entry, _Refusal):
            raise Unsupported(entry.reason)
        copied += entry.names
        named.update({name: _copy(named[name]) for name in entry.names})
    entry.used = True
    return _run(entry, wish, named, num_chunks, copied)


def _shape(entry: _Entry, wish: Wish, named: dict[str, Any], num_chunks: int | None) -> _Shape:
    name, features = entry.first
    leading = tuple(named[name].shape[:-features])
    tokens = leading[-1] if len(leading) == 1 else leading[0] * leading[1]
    chunks, bound = entry.num_chunks, False
    if chunks < 0 and wish.operation != "carry":
        chunks, bound = most_chunks(tokens, entry.num_seqs, wish.chunk), True
        offsets = named["seq_offsets"]
        if not is_torch(offsets) or offsets.device.type == "cpu":
            chunks, bound = min(chunks, _count_chunks(offsets.tolist(), wish.chunk)), False
    if num_chunks is not None and (num_chunks > chunks if bound else num_chunks != chunks):
        expected = f"at most {chunks} chunks" if bound else f"{chunks}, the chunks of all sequences,"
        raise Invalid(f"num_chunks: expected {expected} of {wish.chunk} tokens, found {num_chunks}")
    if "states" in named and not bound and named["states"].shape[0] < chunks:
        found = named["states"].shape[0]
        raise Invalid(f"states: expected {chunks} rows, one for each chunk of {wish.chunk} tokens, found {found}")
    return _Shape(leading, chunks, entry.num_seqs)


def _count_chunks(offsets: list[int], chunk: int) -> int:
    """The library looks at the offsets themselves; here bad ones only must not count below 0."""
    return sum(max(0, -(-(end - begin) // chunk)) for begin, end in itertools.pairwise(offsets))


def _run(
    entry: _Entry, wish: Wish, named: dict[str, Any], num_chunks: int | None, copied: tuple[str, ...]
) -> tuple[Any, ...]:
    shape = _shape(entry, wish, named, num_chunks)
    first = named[entry.first[0]]
    as_torch = is_torch(first)
    raise_versions(named.get(name) for name in ("o", "final", "report"))
    if as_torch:
        framework, device = torch_if_imported(), first.device
    else:
        import numpy as framework

        device = None
    made = {}
    for output in entry.outputs:
        dtype = output.dtype if as_torch else numpy_dtype(output.dtype)
        made[output.name] = empty(framework, (*shape.of(output.rows), *output.shape), dtype, device)
    tensors, intermediates = _abi.Tensors(), _abi.Intermediates()
    tensors.intermediates = ctypes.addressof(intermediates)
    if entry.late:
        tensors.num_tokens = shape.leading[-1]
    for name in (*entry.pointers, *made):
        value = made[name] if name in made else named[name]
        holder = intermediates if name in _abi.INTERMEDIATES else tensors
        setattr(holder, name, address_of(value) or None)
    from ._call import remember_stage

    remember_stage(entry.plan, copied)
    execute(entry.handle, tensors, entry.workspace_bytes, framework, device)
    if num_chunks is not None and "states" in made:
        made["states"] = made["states"][:num_chunks]
    return tuple(made[name] if name in made else named.get(name) if name in _OTHERS else None for name in RESULTS)


__all__ = ["RESULTS", "call"]
