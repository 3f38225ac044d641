"""Right and wrong calls for test_typing.py, which runs mypy on this file. Nothing here is executed.

A comment names the error that mypy has to find in its line; in every other line it has to find none.
"""

from __future__ import annotations

from typing import Any

import numpy

import deltarelay
from deltarelay import TensorSpec, stages

Array = numpy.ndarray[Any, Any]


def right(q: Array, k: Array, v: Array, g: Array, beta: Array, pool: Array, wants: bool) -> None:
    o, final, _ = deltarelay.forward("gdn", q, k, v, g, beta, l2norm=True, final=True)
    o.sum(), final.sum()
    deltarelay.forward("kda", q, k, v, g, beta, gate="softplus", a_log=pool, scale=None, segments=4, threads=2)
    deltarelay.forward("kda", q, k, v, g, beta, segments="len:4096", final=pool, final_dtype="bf16", o=v).final.sum()
    deltarelay.forward("kda", q, k, v, g, beta, checkpoints="chunks", state_layout="key_major").checkpoint.sum()
    both = deltarelay.forward("kda", q, k, v, g, beta, checkpoints=64, final=True)
    both.final.sum(), both.checkpoint.sum()
    perhaps = deltarelay.forward("gdn", q, k, v, g, beta, final=wants).final
    if perhaps is not None:
        perhaps.sum()
    every: deltarelay.Outputs[Array, Array, None] = deltarelay.forward("gdn", q, k, v, g, beta, final=True)
    every.o.sum()
    spec = TensorSpec((64, 2, 128), "bf16", "h200")
    plan = deltarelay.plan("kda", spec, spec, spec, spec, TensorSpec([64, 2], "bf16", "h200"), final=True, l2norm=True)
    plan.describe("svg").lower()
    deltarelay.explain("gdn", q, k, v, g, beta, checkpoints=64, math="tf32")["cpu"].lower()
    stages.chunk_local("gdn", q=q, k=k, v=v, g=g, beta=beta, wanted=("w", "u"), dtype="fp32", chunk=32)
    stages.carry("gdn", summaries=q, wanted="composed", final=True)


def wrong(q: Array, k: Array, v: Array, g: Array, beta: Array, wants: bool) -> None:
    deltarelay.forward("gnd", q, k, v, g, beta)  # call-overload
    deltarelay.forward("gdn", q, k, v, g, beta, gate="lgo")  # call-overload
    deltarelay.forward("gdn", q, k, v, g, beta, l2_norm=True)  # call-overload
    deltarelay.forward("gdn", q, k, v, g, beta, l2norm="no")  # call-overload
    deltarelay.forward("gdn", q, k, v, g, beta, final_dtype="float32")  # call-overload
    deltarelay.forward("gdn", q, k, v, g, beta, checkpoints="chunk")  # call-overload
    deltarelay.forward("gdn", q, k, v, g, beta, scale="0.1")  # call-overload
    deltarelay.forward("gdn", [1.0], k, v, g, beta)  # call-overload
    deltarelay.forward("gdn", q, None, v, g, beta)  # call-overload
    deltarelay.forward("gdn", q, k, v, g, beta).final.sum()  # attr-defined
    deltarelay.forward("gdn", q, k, v, g, beta, final=True).checkpoint.sum()  # attr-defined
    deltarelay.forward("gdn", q, k, v, g, beta, final=wants).final.sum()  # union-attr
    deltarelay.plan("gdn", q, k, v, g, beta, gate="lgo")  # arg-type
    deltarelay.plan("gdn", q, k, v, g, beta, finale=True)  # call-arg
    deltarelay.plan("gdn", q, k, v, g, beta).describe("xml")  # arg-type
    TensorSpec((1, 2), "float32")  # arg-type
    TensorSpec(5)  # arg-type
    stages.chunk_local("gdn", q=q, wanted=("w", "states"))  # arg-type
    stages.chunk_local("gdn", q=q, gate="lgo")  # arg-type
    stages.carry("gdn", summaries=q, state_layout="rows")  # arg-type
