"""Tensors that are more than plain memory: recognised, then handled or refused by name."""

from __future__ import annotations

from typing import Any, NoReturn

from ._plans import ARGUMENTS, read_offsets, request_of
from ._settings import Settings
from ._views import expected_kind, in_forward_ad, is_numpy, is_torch, is_watched, torch_if_imported
from .errors import Invalid, Unsupported, WrongType, class_name


def _refuse(name: str, expected: str, found: str) -> NoReturn:
    raise WrongType(f"{name}: expected {expected}, found {found}")


def _check_torch(name: str, value: Any) -> None:
    """Raises if nobody can handle a tensor."""
    torch = torch_if_imported()
    kind = type(value).__name__
    if kind == "DTensor":
        _refuse(name, "a local tensor (x.to_local() gives the part of this rank)", "a DTensor")
    if value.layout is not torch.strided:
        _refuse(name, "a dense tensor", f"layout {value.layout}")
    if value.is_nested:
        _refuse(name, "a dense tensor (sequences of several lengths are packed, with seq_offsets)", "a nested one")
    if value.is_quantized:
        _refuse(name, "fp32, bf16 or fp16", "a quantized tensor")
    if value.is_complex():
        _refuse(name, "fp32, bf16 or fp16", f"{value.dtype}")
    transform = _transform_of(value)
    if transform:
        _refuse(name, "a tensor outside of torch.func's transforms (sequences are axis 0, or packed)", transform)
    if value.device.type not in ("cpu", "cuda", "meta"):
        _refuse(name, "a tensor on cpu or cuda", f"device {value.device}")


def _transform_of(value: Any) -> str:
    """Tensors inside torch.func's transforms are of torch's plain type."""
    functorch = getattr(torch_if_imported()._C, "_functorch", None)
    for test, words in (("is_batchedtensor", "one of vmap"), ("is_gradtrackingtensor", "one of grad, vjp or jvp")):
        if getattr(functorch, test, bool)(value):
            return words
    return ""


def is_captured() -> bool:
    """Does torch write down what it is asked instead of computing it? Other dispatch modes only look on."""
    torch = torch_if_imported()
    if torch is None:
        return False
    modes = torch._C._TorchDispatchModeKey
    known = (getattr(modes, name, None) for name in ("FAKE", "PROXY", "FUNCTIONAL"))
    return torch._C._is_tracing() or any(
        key is not None and torch._C._get_dispatch_mode(key) is not None for key in known
    )


def _needs_op(value: Any) -> bool:
    """Tensors without their own memory (fake, meta, functional, batched) and subclasses use the registered ops."""
    torch = torch_if_imported()
    plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return not plain or value.device.type == "meta" or torch._is_functional_tensor(value)


def _refuse_tangents(named: dict[str, Any]) -> None:
    if not in_forward_ad():
        return
    for name, value in named.items():
        if is_torch(value) and torch_if_imported().autograd.forward_ad.unpack_dual(value).tangent is not None:
            raise Unsupported(
                f"{name}: expected a tensor without a tangent, found a dual tensor of forward-mode gradients, which "
                f"are not there yet: call with forward_ad.unpack_dual({name}).primal"
            )


def refuse_gradients(named: dict[str, Any]) -> None:
    """Parameters are read under torch.no_grad(). Tensors that do not require grad need no such context."""
    _refuse_tangents(named)
    if not torch_if_imported().is_grad_enabled():
        return
    for name, value in named.items():
        if is_torch(value) and value.requires_grad:
            raise Unsupported(
                f"{name}: expected a tensor that does not require grad, found one that does. There is no backward yet: "
                f"call with {name}.detach() or under torch.no_grad(), or keep FLA's own functions for training"
            )


def readable(named: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a stage, as plain memory; or raises the reason. Stages are no operators of torch: what has no
    memory is refused."""
    witness = next(name for name in named if name != "host_offsets")
    as_torch = is_torch(named[witness])
    if as_torch and is_captured():
        raise Unsupported(
            f"{witness}: expected a call that computes, found one under FakeTensorMode, make_fx or torch.jit.trace: "
            "stages are no operators of torch"
        )
    changed = dict(named)
    for name, value in named.items():
        if not is_torch(value) and not is_numpy(value):
            _refuse(name, expected_kind(name), class_name(value))
        if is_torch(value) != as_torch and name != "host_offsets":
            _refuse(name, f"a tensor of the same library as {witness}", class_name(value))
        written = name in ("o", "final", "report")
        if is_numpy(value):
            if hasattr(value, "mask"):
                _refuse(name, "a plain array", "a masked array")
            if written and not value.flags.writeable:
                _refuse(name, "an array that can be written", "a read-only one")
            continue
        _check_torch(name, value)
        if _needs_op(value):
            _refuse(
                name, "a plain tensor in memory", class_name(value) if value.device.type != "meta" else "a meta one"
            )
        if value.is_neg():
            if written:
                _refuse(name, "memory that can be written", "a view with its negation put off")
            changed[name] = value.resolve_neg()
    if as_torch:
        refuse_gradients({name: value for name, value in named.items() if is_torch(value)})
    return changed


def handle(settings: Settings, arguments: tuple[Any, ...], in_operator: bool) -> tuple[Any, Any, Any]:
    """Tensors that neither way to call can read: makes them readable and calls again, or raises the reason."""
    named = {name: value for name, value in zip(ARGUMENTS, arguments) if value is not None}
    if "q" not in named:
        raise Invalid("q: expected a tensor, found None")
    as_torch = is_torch(named["q"])
    if as_torch and is_numpy(named.get("host_offsets")):
        from ._call import call_again

        offsets = torch_if_imported().tensor(read_offsets("host_offsets", named["host_offsets"]))
        return call_again(settings, (*arguments[: ARGUMENTS.index("host_offsets")], offsets), in_operator)
    for name, value in named.items():
        if not is_torch(value) and not is_numpy(value):
            _refuse(name, expected_kind(name), class_name(value))
        if is_torch(value) != as_torch and name != "host_offsets":
            _refuse(name, "a tensor of the same library as q", class_name(value))
        if is_torch(value):
            _check_torch(name, value)
    if not as_torch:
        return _numpy(settings, arguments, named)
    for name, value in named.items():
        if (value.device.type == "meta") != (named["q"].device.type == "meta") and name != "host_offsets":
            _refuse(name, f"device {named['q'].device} as q", f"{value.device}")
    refuse_gradients(named)
    if any(map(_needs_op, named.values())) or (is_watched() and not in_operator):
        from . import torch_ops

        return torch_ops.dispatch(settings, arguments)
    return _again(settings, arguments, named, in_operator)


def _again(
    settings: Settings, arguments: tuple[Any, ...], named: dict[str, Any], in_operator: bool
) -> tuple[Any, Any, Any]:
    """Reads parameters as tensors, resolves pending negations, and makes lists contiguous."""
    from ._call import call_again, call_by_ctypes

    changed = list(arguments)
    for name, value in named.items():
        index = ARGUMENTS.index(name)
        if value.requires_grad:
            value = changed[index] = value.detach()
        if value.is_neg():
            if name in ("o", "final", "checkpoint", "report"):
                _refuse(name, "memory that can be written", "a view with its negation put off")
            changed[index] = value.resolve_neg()
        if name in ("host_offsets", "seq_offsets"):
            if value.ndim != 1:
                read_offsets(name, value)
            changed[index] = value.contiguous()
        if value.device.type != "cpu" and name == "host_offsets":
            raise Invalid(f"{name}: expected a tensor on the CPU, found one on {value.device}")
    if in_forward_ad():  # where the extension looks at no tensor
        results = call_by_ctypes(settings, tuple(changed))
    elif any(a is not b for a, b in zip(changed, arguments)):
        results = call_again(settings, tuple(changed), in_operator)
    else:
        results = None
    if results is None:
        request_of(settings, arguments)  # names what breaks a rule
        raise WrongType(f"q: expected a tensor that can be read, found {class_name(named['q'])}")
    given = (arguments[ARGUMENTS.index(output)] for output in ("o", "final", "checkpoint"))
    return tuple(result if mine is None else mine for mine, result in zip(given, results))  # type: ignore[return-value]


def _numpy(settings: Settings, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Arrays without a letter in the buffer protocol (bfloat16 of ml_dtypes), subclasses, and lists with strides."""
    import numpy

    from ._call import call_by_ctypes

    changed = list(arguments)
    for name, value in named.items():
        if not is_numpy(value):
            continue
        if name in ("o", "final", "checkpoint", "report") and not value.flags.writeable:
            _refuse(name, "an array that can be written", "a read-only one")
        if isinstance(value, numpy.ma.MaskedArray):
            _refuse(name, "a plain array", "a masked array")
        index = ARGUMENTS.index(name)
        if name in ("host_offsets", "seq_offsets"):
            if value.ndim != 1:
                read_offsets(name, value)
            changed[index] = numpy.ascontiguousarray(value)
    results = call_by_ctypes(settings, tuple(changed))
    if results is None:
        request_of(settings, arguments)  # names what breaks a rule
        raise WrongType(f"q: expected an array that can be read, found {class_name(named['q'])}")
    return results
