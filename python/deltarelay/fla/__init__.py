"""FLA's functions under FLA's names, and FLA's own models on DeltaRelay.

    from deltarelay.fla import chunk_kda, chunk_gated_delta_rule     FLA's arguments, order, defaults and results

    import deltarelay
    print(deltarelay.fla.enable())     FLA's functions, layers and everything built on them now ask us first

`status()` says what is registered and counts the calls; `deltarelay.last_call()` says what ran, or why a call was
declined. Importing this module changes nothing; FLA and torch are imported by `enable()`.
"""

from __future__ import annotations

from ._backend import disable, enable, status
from ._gdn import chunk_gated_delta_rule, chunk_gdn
from ._kda import chunk_kda
from ._report import Drift, Report

__all__ = ["Drift", "Report", "chunk_gated_delta_rule", "chunk_gdn", "chunk_kda", "disable", "enable", "status"]
