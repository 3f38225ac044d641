"""Facts of tensors: shape, strides, type, device and alignment, for every framework."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._types import TensorType
from .errors import Invalid, Unsupported, WrongType, class_name, shown

# Our name: (DLPack's type code, bits, NumPy's name)
DTYPES = {
    "fp32": (2, 32, "float32"),
    "bf16": (4, 16, "bfloat16"),
    "fp16": (2, 16, "float16"),
    "int32": (0, 32, "int32"),
    "int64": (0, 64, "int64"),
    "uint8": (1, 8, "uint8"),
    "bool": (6, 8, "bool"),
}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int32": 4, "int64": 8, "uint8": 1, "bool": 1}
_OF_NAME = {numpy_name: ours for ours, (_, _, numpy_name) in DTYPES.items()}


class View(NamedTuple):
    """What a plan needs to know of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    dtype: str  # "fp32", ...; the framework's name if we have none
    device: str  # "cpu", "cuda:0", or a model such as "h200" of a TensorSpec
    alignment: int = 16


_LARGEST = 2**63 - 1  # int64
_MOST_ALIGNMENT = 2**30  # int32


def _integers(name: str, values: Any, least: int) -> tuple[int, ...]:
    found = []
    try:
        for value in values:
            found.append(operator.index(value))
    except TypeError:
        raise WrongType(f"{name}: expected integers, found {shown(values)}") from None
    for value in found:
        if not least <= value <= _LARGEST:
            bound = f"of at least {least}" if value < least else "of at most 2^63 - 1"
            raise Invalid(f"{name}: expected integers {bound}, found {shown(value)}")
    return tuple(found)


class TensorSpec:
    """Describes a tensor that does not exist: for plans from shapes alone, also for devices that are not here.

    Args:
        shape: its extents.
        dtype: "fp32", "bf16", "fp16", "int32", "int64", "uint8" or "bool".
        device: "cpu", "cuda:0", or a model that the library knows, such as "h200".
        strides: in elements; contiguous if None.
        alignment: of its memory, in bytes; a power of two.

    Raises:
        Invalid, WrongType: as `deltarelay.forward`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: TensorType = "fp32",
        device: str = "cpu",
        *,
        strides: Sequence[int] | None = None,
        alignment: int = 16,
    ) -> None:
        lengths = _integers("shape", shape, 0)
        steps = contiguous(lengths) if strides is None else _integers("strides", strides, -_LARGEST)
        if len(steps) != len(lengths):
            raise Invalid(f"strides: expected one for each of the {len(lengths)} axes of shape, found {len(steps)}")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            error = Invalid if isinstance(dtype, str) else WrongType
            raise error(f"dtype: expected one of {', '.join(map(repr, DTYPES))}, found {shown(dtype)}")
        if sum(max(0, length - 1) * abs(step) for length, step in zip(lengths, steps)) * BYTES[dtype] > _LARGEST:
            raise Invalid(f"shape: expected a tensor of at most 2^63 - 1 bytes, found {list(lengths)} of {dtype}")
        if not isinstance(device, str) or not device:
            raise WrongType(f"device: expected a name such as 'cpu', 'cuda:0' or 'h200', found {shown(device)}")
        (bytes_,) = _integers("alignment", (alignment,), 1)
        if bytes_ & (bytes_ - 1) or bytes_ > _MOST_ALIGNMENT:
            raise Invalid(f"alignment: expected a power of two, at most 2^30 bytes, found {bytes_}")
        self.view = View(lengths, steps, dtype, device, bytes_)

    def __repr__(self) -> str:
        return f"TensorSpec({self.view.shape}, {self.view.dtype!r}, {self.view.device!r})"


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for length in reversed(shape):
        strides.append(stride)
        stride *= length
    return tuple(reversed(strides))


def torch_if_imported() -> Any:
    return sys.modules.get("torch")


def is_torch(value: object) -> bool:
    torch = torch_if_imported()
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_numpy(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_watched() -> bool:
    """Does anyone watch what torch computes, who would not see a call that only reads memory: a dispatch mode
    (FakeTensorMode, make_fx, a flop counter) or torch.jit.trace? As binding/arguments.c."""
    torch = torch_if_imported()
    return torch is not None and bool(torch._C._len_torch_dispatch_stack() or torch._C._is_tracing())


def in_forward_ad() -> bool:
    """May tensors have tangents?"""
    torch = torch_if_imported()
    return torch is not None and torch.autograd.forward_ad._current_level >= 0


def raise_versions(written: Any) -> None:
    """Autograd compares versions of the tensors it has saved. Before a call, because one that fails may have
    written."""
    for value in written:
        if is_torch(value):
            torch_if_imported().autograd.graph.increment_version(value)


def alignment_of(address: int) -> int:
    return 16 if address % 16 == 0 else address & -address


def address_of(value: Any) -> int:
    return value.data_ptr() if is_torch(value) else value.ctypes.data


def expected_kind(name: str) -> str:
    return ("True, False, " if name == "final" else "") + "a torch.Tensor or a numpy.ndarray"


def view_of(name: str, value: Any) -> View:
    if isinstance(value, TensorSpec):
        return value.view
    if is_torch(value):
        dtype = str(value.dtype).removeprefix("torch.")
        device = f"cuda:{value.device.index}" if value.device.type == "cuda" else value.device.type
        shape, strides = tuple(value.shape), tuple(value.stride())
    elif is_numpy(value):
        if not value.dtype.isnative:
            raise WrongType(f"{name}: expected the byte order of this machine, found {value.dtype.str!r}")
        dtype, device = value.dtype.name, "cpu"
        size = value.dtype.itemsize
        shape = value.shape
        if any(stride % size for stride in value.strides):
            raise WrongType(f"{name}: expected strides of whole elements, found {value.strides} bytes")
        strides = tuple(stride // size for stride in value.strides)
    else:
        raise WrongType(f"{name}: expected {expected_kind(name)}, found {class_name(value)}")
    return View(shape, strides, _OF_NAME.get(dtype, dtype), device, alignment_of(address_of(value)))


def torch_dtype(dtype: str) -> Any:
    return getattr(torch_if_imported(), DTYPES[dtype][2])


def numpy_dtype(dtype: str) -> Any:
    if dtype == "bf16":
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported(
                "bf16 results as NumPy arrays: expected the package ml_dtypes (pip install ml_dtypes), found none; "
                "o_dtype='fp32' and final_dtype='fp32' need none"
            ) from None
        return ml_dtypes.bfloat16
    return DTYPES[dtype][2]
