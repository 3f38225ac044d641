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
import importlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import _call
from .errors import Error, Invalid, Unsupported
from .fla import chunk_gated_delta_rule, chunk_kda

# Names that layers know a chunk function by.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "chunk_gated_delta_rule": chunk_gated_delta_rule,  # Qwen3-Next, Qwen3.5, OLMo hybrid as attributes
    "torch_chunk_gated_delta_rule": chunk_gated_delta_rule,  # the same in modeling files
    "chunk_kda": chunk_kda,
    "chunk_kimi_delta_attention": chunk_kda,  # Kimi Linear, GLM-5-Next, Bailing
}
_MARK = "_deltarelay_patch"
_ROWS = 5  # q, k, v, g, beta come first in all of them


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


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(name for name, found in inspect.signature(function).parameters.items() if found.kind not in kinds)


_OURS = {name: _parameters(function) for name, function in FUNCTIONS.items()}


class _Function:
    """Ours with the arguments of a layer; the original where we decline. A layer may hold it: it can be copied and
    pickled with the layer if the original can."""

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        self.original, self.name, self.theirs = original, name, _parameters(original)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ours = FUNCTIONS[self.name]
        try:
            return ours(*args[:_ROWS], **self._understood(args[_ROWS:], kwargs))
        except Error as error:
            _call.note_declined(f"{ours.__name__}: {error}")
            return self.original(*args, **kwargs)

    def _understood(self, more: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """Keywords for ours. transformers hands every keyword of the model on and drops what the function does not
        name; what it names and ours does not is refused if it asks for something."""
        theirs, ours = self.theirs, _OURS[self.name]
        if more:  # behind the rows the original may have another order
            if len(more) > len(theirs) - _ROWS:
                raise Invalid(f"arguments: expected at most {len(theirs)} by position, found {_ROWS + len(more)}")
            given = {**dict(zip(theirs[_ROWS:], more)), **given}
        rows = dict(zip(theirs[:_ROWS], ours))  # query is q there
        given = {rows.get(keyword, keyword): value for keyword, value in given.items()}
        for keyword in given.keys() - set(ours):
            if keyword in theirs and given[keyword] is not None and given[keyword] is not False:
                raise Unsupported(f"{keyword}: expected None or False, found {type(given[keyword]).__name__}")
        return {keyword: value for keyword, value in given.items() if keyword in ours}


class _Chooser:
    """Stands for a function in a modeling file, as long as patched layers are there that it chooses ours for."""

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, original)
        self.original, self.function = original, _Function(original, name)
        self.layers: weakref.WeakSet[_Forward] = weakref.WeakSet()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.function if _inside.layers else self.original)(*args, **kwargs)


class _Forward:
    """The forward of a patched layer. It belongs to its layer: a copy of the layer has one of its own, and so has one
    that was pickled, in a process where nothing was patched."""

    def __init__(self, layer: Any, own: Any, places: tuple[tuple[str, str], ...]) -> None:
        self.layer, self.own, self.places = layer, own, places
        self._install()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The layer's own forward: one of the instance, or that of its class."""
        own: Callable[..., Any] | None = self.own
        return own if own is not None else type(self.layer).forward.__get__(self.layer)

    def _install(self) -> None:
        for module, name in self.places:
            file = importlib.import_module(module)
            if not isinstance(getattr(file, name), _Chooser):
                setattr(file, name, _Chooser(getattr(file, name), name))
            getattr(file, name).layers.add(self)

    def remove(self) -> None:
        for module, name in self.places:
            file = importlib.import_module(module)
            chooser = getattr(file, name)
            if not isinstance(chooser, _Chooser):
                continue
            chooser.layers.discard(self)
            if not chooser.layers:
                setattr(file, name, chooser.original)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._install()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _inside.layers += 1
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            _inside.layers -= 1


@dataclasses.dataclass
class _Layer:
    """What one layer had before."""

    attributes: dict[str, Any]
    forward: Any  # of the instance, or None
    chosen: tuple[tuple[str, str], ...]  # (modeling file, name)


def _names_used(layer: Any) -> set[str]:
    """Global names in the layer's forward, under its decorators."""
    code = getattr(inspect.unwrap(type(layer).forward), "__code__", None)
    return set(code.co_names) if code is not None else set()


def _patch_layer(layer: Any) -> tuple[str, ...]:
    own = [name for name in FUNCTIONS if callable(vars(layer).get(name))]
    before = _Layer({name: vars(layer)[name] for name in own}, vars(layer).get("forward"), ())
    for name in own:
        setattr(layer, name, _Function(vars(layer)[name], name))
    file = sys.modules.get(type(layer).__module__)
    shared = [name for name in FUNCTIONS if name in _names_used(layer) and callable(getattr(file, name, None))]
    if shared:
        before.chosen = tuple((type(layer).__module__, name) for name in shared)
        layer.forward = _Forward(layer, before.forward, before.chosen)
    if own or shared:
        setattr(layer, _MARK, before)
    return (*own, *shared)


def patch(model: Any) -> Patched:
    """Puts the delta-rule layers of a model on DeltaRelay, this instance only. Twice is as good as once.

    Prefill and everything longer than one token is ours then; decode stays with the layer. Calls we decline (tensors
    that require grad, head sizes) go to the layer's own function; `deltarelay.last_call().declined` says why. A copy of
    a patched model is patched, and so is one that was pickled and loaded where this package is installed.

    Raises:
        Invalid: the model has no layer with a chunk function that is known here.
    """
    layers: list[str] = []
    functions: dict[str, None] = {}
    for name, layer in model.named_modules():
        found = _names_of(layer) if hasattr(layer, _MARK) else _patch_layer(layer)
        if found:
            layers.append(name or type(layer).__name__)
            functions |= dict.fromkeys(found)
    if not layers:
        known = ", ".join(FUNCTIONS)
        raise Invalid(f"model: expected layers with one of {known}, found none in {type(model).__name__}")
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
            layer.forward.remove()
            del layer.forward
            if before.forward is not None:
                layer.forward = before.forward
        delattr(layer, _MARK)
