"""Models of transformers on DeltaRelay, without FLA: `patch(model)` and `unpatch(model)`.

With FLA installed nothing is needed here: transformers takes FLA's functions, and `deltarelay.fla.enable()` reaches
them. `patch` is for models that run transformers' own torch loops, or for putting one model and no other on DeltaRelay.

A layer has its chunk function either as an attribute of the instance (transformers 4 and early 5), which is replaced
there, or looks it up in its modeling file (5.x). Then the name in that file becomes a chooser that takes ours inside
the forward of patched layers and the original everywhere else, so that other models of the same class are left alone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import _call
from .errors import Error
from .fla import chunk_gated_delta_rule, chunk_kda

# Names that layers know a chunk function by.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "chunk_gated_delta_rule": chunk_gated_delta_rule,  # Qwen3-Next, Qwen3.5, OLMo hybrid as attributes
    "torch_chunk_gated_delta_rule": chunk_gated_delta_rule,  # the same in modeling files
    "chunk_kda": chunk_kda,
    "chunk_kimi_delta_attention": chunk_kda,  # Kimi Linear, GLM-5-Next, Bailing
}
_MARK = "_deltarelay_patch"


class _Inside(threading.local):
    layers = 0  # patched layers whose forward the thread is in


_inside = _Inside()


@dataclasses.dataclass
class Patched:
    """What `patch` did. `layers` are names of modules."""

    layers: tuple[str, ...]
    functions: tuple[str, ...]

    def __str__(self) -> str:
        return f"DeltaRelay computes {', '.join(self.functions)} of {len(self.layers)} layers: {', '.join(self.layers)}"


@dataclasses.dataclass
class _Layer:
    """What one layer had before."""

    attributes: dict[str, Any]
    has_forward: bool  # in its own dict
    forward: Any
    chosen: tuple[tuple[Any, str], ...]  # (modeling file, name)


def _adapter(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Ours with the arguments of a layer; the original where we decline."""
    names = tuple(inspect.signature(ours).parameters)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            # transformers hands every keyword of the model on and drops what the function does not name
            return ours(*args, **{name: value for name, value in kwargs.items() if name in names})
        except Error as error:
            _call.note_declined(f"{ours.__name__}: {error}")
            return original(*args, **kwargs)

    return function


class _Chooser:
    """Stands for a function in a modeling file. Counts the layers it is there for."""

    def __init__(self, original: Callable[..., Any], ours: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.original, self.adapted, self.layers = original, _adapter(original, ours), 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.adapted if _inside.layers else self.original)(*args, **kwargs)


def _forward_of(layer: Any) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        _inside.layers += 1
        try:
            return inner(*args, **kwargs)
        finally:
            _inside.layers -= 1

    inner = layer.forward
    return functools.wraps(inner)(forward)


def _names_used(layer: Any) -> set[str]:
    """Global names in the layer's forward, under its decorators."""
    code = getattr(inspect.unwrap(type(layer).forward), "__code__", None)
    return set(code.co_names) if code is not None else set()


def _patch_layer(layer: Any) -> tuple[str, ...]:
    own = [name for name in FUNCTIONS if callable(vars(layer).get(name))]
    before = _Layer({name: vars(layer)[name] for name in own}, "forward" in vars(layer), vars(layer).get("forward"), ())
    for name in own:
        setattr(layer, name, _adapter(vars(layer)[name], FUNCTIONS[name]))
    file = sys.modules.get(type(layer).__module__)
    shared = [name for name in FUNCTIONS if name in _names_used(layer) and callable(getattr(file, name, None))]
    for name in shared:
        if not isinstance(getattr(file, name), _Chooser):
            setattr(file, name, _Chooser(getattr(file, name), FUNCTIONS[name]))
        getattr(file, name).layers += 1
    if shared:
        before.chosen = tuple((file, name) for name in shared)
        layer.forward = _forward_of(layer)
    if own or shared:
        setattr(layer, _MARK, before)
    return (*own, *shared)


def patch(model: Any) -> Patched:
    """Puts the delta-rule layers of a model on DeltaRelay, this instance only. Twice is as good as once.

    Prefill and everything longer than one token is ours then; decode stays with the layer. Calls we decline (tensors
    that require grad, head sizes) go to the layer's own function; `deltarelay.last_call().declined` says why.

    Raises:
        ValueError: the model has no layer with a chunk function that is known here.
    """
    layers, functions = [], {}
    for name, layer in model.named_modules():
        found = _names_of(layer) if hasattr(layer, _MARK) else _patch_layer(layer)
        if found:
            layers.append(name or type(layer).__name__)
            functions |= dict.fromkeys(found)
    if not layers:
        known = ", ".join(FUNCTIONS)
        raise ValueError(f"model: expected layers with one of {known}, found none in {type(model).__name__}")
    return Patched(tuple(layers), tuple(functions))


def _names_of(layer: Any) -> tuple[str, ...]:
    before: _Layer = getattr(layer, _MARK)
    return (*before.attributes, *(name for _, name in before.chosen))


def unpatch(model: Any) -> None:
    """Gives a patched model its own functions back."""
    for layer in model.modules():
        before: _Layer | None = vars(layer).get(_MARK)
        if before is None:
            continue
        for name, value in before.attributes.items():
            setattr(layer, name, value)
        if before.chosen:
            del layer.forward
            if before.has_forward:
                layer.forward = before.forward
        for file, name in before.chosen:
            chooser = getattr(file, name)
            chooser.layers -= 1
            if chooser.layers == 0:
                setattr(file, name, chooser.original)
        delattr(layer, _MARK)
