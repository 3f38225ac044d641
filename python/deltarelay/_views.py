"""Facts of tensors: shape, strides, type, device and alignment, for every framework."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from .errors import WrongType

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


class TensorSpec:
    """Describes a tensor that does not exist: for plans from shapes alone, also for devices that are not here.

    Args:
        shape: its extents.
        dtype: "fp32", "bf16", "fp16", "int32", "int64", "uint8" or "bool".
        device: "cpu", "cuda:0", or a model that the library knows, such as "h200".
        strides: in elements; contiguous if None.
        alignment: of its memory, in bytes.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str = "fp32",
        device: str = "cpu",
        *,
        strides: tuple[int, ...] | None = None,
        alignment: int = 16,
    ) -> None:
        self.view = View(tuple(shape), tuple(strides) if strides else contiguous(shape), dtype, device, alignment)

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
        raise WrongType(f"{name}: expected a torch.Tensor or a numpy.ndarray, found {type(value).__name__}")
    return View(shape, strides, _OF_NAME.get(dtype, dtype), device, alignment_of(address_of(value)))


def torch_dtype(dtype: str) -> Any:
    return getattr(torch_if_imported(), DTYPES[dtype][2])


def numpy_dtype(dtype: str) -> Any:
    if dtype == "bf16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return DTYPES[dtype][2]
