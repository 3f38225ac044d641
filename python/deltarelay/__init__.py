"""DeltaRelay: delta-rule linear attention (KDA and GDN) that keeps the whole machine busy on one long sequence.

    import deltarelay
    o, final, _ = deltarelay.forward("gdn", q, k, v, g, beta, l2norm=True, final=True)

FLA's functions under FLA's names: `deltarelay.chunk_kda`, `deltarelay.chunk_gated_delta_rule`. To run FLA's own models
on it: `deltarelay.fla.enable()`. The stages of a forward one by one: `deltarelay.stages`. `deltarelay.info()` says what
is installed; `deltarelay.last_call()` what ran.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._call import LastCall, last_call
from ._information import info
from ._plans import Plan
from ._switches import switch
from ._version import __version__
from ._views import TensorSpec
from .errors import DeviceError, Error, Invalid, Unsupported, WrongType
from .functions import Outputs, explain, forward, plan

if TYPE_CHECKING:
    from . import fla, plot, stages
    from .fla import chunk_gated_delta_rule, chunk_gdn, chunk_kda

_LAZY = {"chunk_kda": "fla", "chunk_gated_delta_rule": "fla", "chunk_gdn": "fla"}
_LAZY_MODULES = ("fla", "models", "plot", "stages", "torch_ops", "engines")

__all__ = [
    "DeviceError",
    "Error",
    "Invalid",
    "LastCall",
    "Outputs",
    "Plan",
    "TensorSpec",
    "Unsupported",
    "WrongType",
    "__version__",
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_kda",
    "explain",
    "fla",
    "forward",
    "info",
    "last_call",
    "plan",
    "plot",
    "stages",
]


def __getattr__(name: str) -> Any:
    """Imports modules with further dependencies when they are first used."""
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_operators() -> None:
    """`torch.ops.deltarelay` is there if torch was imported before this package. Where torch comes later, `import
    deltarelay.torch_ops` registers the operators: this package never imports torch of itself."""
    torch = sys.modules.get("torch")
    if hasattr(getattr(torch, "library", None), "register_fake"):
        from . import torch_ops  # noqa: F401


_register_operators()

if switch("DELTARELAY_FLA"):  # read once, here; without it, importing this package changes nothing elsewhere
    from .fla._switch import enable_by_environment

    enable_by_environment()
