"""What FLA's own tests ask of its chunk functions (its repository of 2026-08): sizes, forms and tolerances, restated.

Lengths are scaled down for CI, so that the token loop of the reference takes seconds: whole chunks beyond two,
sequences beyond two and q/k heads beyond four of a batched case are left out; of a packed sequence whole chunks beyond
one. Kept is what they are there for: the rest of the last chunk, several chunks, sequences shorter than a chunk, groups
of heads. DELTARELAY_FLA_FULL=1 runs them as FLA has them.
"""

from __future__ import annotations

import dataclasses
import itertools
import os

FULL = os.environ.get("DELTARELAY_FLA_FULL") == "1"
CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Case:
    rule: str
    about: str  # the group of FLA's tests
    batch: int = 1
    tokens: int = 0
    offsets: tuple[int, ...] | None = None  # packed instead of batch and tokens
    hqk: int = 4
    hv: int = 4
    width: int = 64
    dtype: str = "float16"
    scale: float | None = None
    gate_divisor: float = 1.0  # of log gates; small ones forget fast
    open_share: float = 0.0  # log gates that are set to 0
    shut_share: float = 0.0  # gates that are set to -1000
    l2norm: bool = False  # in the call
    raw_gate: bool = False
    a_log: bool = True
    bias: bool = True
    safe: bool = False
    sigmoid: bool = False  # beta in the call
    twice: bool = False
    chunk: int = CHUNK
    v_first: bool = False
    keep_all: bool = False  # disable_recompute
    half_initial: bool = False
    tolerance: float = 0.005

    def __str__(self) -> str:
        where = f"{list(self.offsets)}" if self.offsets else f"{self.batch}x{self.tokens}"
        flags = ("l2norm", "raw_gate", "safe", "sigmoid", "twice", "v_first")
        marks = "".join(f"-{flag}" for flag in flags if getattr(self, flag))
        sizes = f"{where}-{self.hqk}/{self.hv}x{self.width}-{self.dtype}-c{self.chunk}"
        return f"{self.rule}-{self.about}-{sizes}{marks}".replace(" ", "")

    def scaled(self) -> Case:
        """Fewer whole chunks, sequences and heads; the same rest."""
        if FULL:
            return self
        if self.offsets is not None:
            lengths = [end - begin for begin, end in itertools.pairwise(self.offsets)]
            short = [_short(length, CHUNK) for length in lengths]
            offsets = [0]
            for length in short:
                offsets.append(offsets[-1] + length)
            return dataclasses.replace(self, offsets=tuple(offsets))
        group = self.hv // self.hqk
        hqk = min(self.hqk, 4)
        return dataclasses.replace(
            self, batch=min(self.batch, 2), tokens=_short(self.tokens, 2 * CHUNK), hqk=hqk, hv=hqk * group
        )


def _short(length: int, chunks: int) -> int:
    return length if length <= chunks + CHUNK else chunks + length % CHUNK


def _batched(rule: str, about: str, sizes: tuple[int, int, int, int, int], **more: object) -> Case:
    batch, tokens, hqk, hv, width = sizes
    return Case(rule, about, batch=batch, tokens=tokens, hqk=hqk, hv=hv, width=width, **more)  # type: ignore[arg-type]


def _packed(
    rule: str, about: str, heads: tuple[int, int], width: int, offsets: tuple[int, ...], **more: object
) -> Case:
    return Case(rule, about, hqk=heads[0], hv=heads[1], width=width, offsets=offsets, **more)  # type: ignore[arg-type]


THREE, FIVE, SHORT = (0, 256, 500, 1000), (0, 15, 100, 300, 1200, 2000), (0, 15)
LONG, TAIL = (0, 100, 300, 1200, 3000, 4096), (0, 31, 96, 160)
BF16 = {"dtype": "bfloat16"}

KDA = [
    _batched("kda", "chunk", (1, 63, 1, 1, 64), scale=1, safe=True),
    _batched("kda", "chunk", (2, 500, 3, 3, 60), scale=1, safe=True, keep_all=True),
    _batched("kda", "chunk", (2, 1000, 3, 3, 64), scale=0.1, open_share=0.5, keep_all=True),
    _batched("kda", "chunk", (3, 1024, 4, 4, 100), scale=1, gate_divisor=0.1),
    _batched("kda", "chunk", (4, 1024, 4, 4, 128), scale=0.1, safe=True, keep_all=True),
    _batched("kda", "chunk", (4, 1024, 4, 4, 128), scale=0.1, safe=True, l2norm=True),
    _batched("kda", "chunk", (2, 1500, 4, 4, 128), scale=0.1, gate_divisor=10, raw_gate=True, keep_all=True),
    _batched("kda", "chunk", (4, 2048, 8, 8, 64), scale=0.1, raw_gate=True, safe=True, keep_all=True),
    _batched("kda", "chunk", (2, 1024, 2, 4, 64), scale=0.1),
    _batched("kda", "chunk", (2, 1024, 2, 8, 64), scale=0.1, raw_gate=True),
    _batched("kda", "chunk", (2, 1024, 4, 8, 128), scale=0.1, raw_gate=True, l2norm=True),
    _batched("kda", "chunk", (2, 160, 2, 4, 64), scale=0.1, raw_gate=True, safe=True, keep_all=True, chunk=32),
    _batched("kda", "chunk", (2, 1024, 2, 4, 64), scale=0.1, raw_gate=True, safe=True, l2norm=True, **BF16),
    _batched("kda", "chunk", (2, 1024, 2, 4, 64), scale=0.1, raw_gate=True, **BF16),
    _batched("kda", "chunk", (2, 160, 2, 4, 64), scale=0.1, raw_gate=True, safe=True, keep_all=True, chunk=32, **BF16),
    _batched("kda", "chunk", (2, 1024, 2, 8, 128), scale=0.1, raw_gate=True, l2norm=True, **BF16),
    _batched("kda", "no A_log", (2, 256, 2, 4, 64), scale=1, raw_gate=True, safe=True, a_log=False),
    _batched("kda", "no A_log, no bias", (1, 64, 1, 1, 64), scale=1, raw_gate=True, safe=True, a_log=False, bias=False),
    _batched("kda", "no bias", (2, 256, 2, 2, 64), scale=1, raw_gate=True, bias=False),
    _batched("kda", "v first", (1, 63, 1, 1, 64), scale=1, v_first=True),
    _batched("kda", "v first", (2, 500, 3, 3, 60), scale=1, v_first=True),
    _batched("kda", "v first", (3, 1024, 4, 4, 128), scale=0.1, v_first=True),
    _batched("kda", "v first", (4, 2048, 8, 8, 64), scale=0.1, v_first=True),
    _batched("kda", "beta", (1, 8192, 96, 96, 128), sigmoid=True, **BF16),
    _batched("kda", "beta", (1, 8192, 96, 96, 128), sigmoid=True, twice=True, **BF16),
    _batched("kda", "beta", (2, 96, 2, 2, 64), sigmoid=True, twice=True),
    _packed("kda", "packed", (4, 4), 60, SHORT, shut_share=0.1, raw_gate=True),
    _packed("kda", "packed", (4, 4), 64, THREE, shut_share=0.9, raw_gate=True),
    _packed("kda", "packed", (4, 4), 128, THREE, open_share=0.5, shut_share=0.5),
    _packed("kda", "packed", (4, 4), 100, FIVE, raw_gate=True),
    _packed("kda", "packed", (4, 4), 256, LONG, safe=True, keep_all=True),
    _packed("kda", "packed", (4, 4), 60, TAIL, shut_share=0.1, raw_gate=True, keep_all=True, chunk=32),
    _packed("kda", "prefill", (4, 4), 60, (0, 8192), shut_share=0.1, raw_gate=True),
]

GDN = [
    _batched("gdn", "chunk", (4, 1024, 4, 4, 128), scale=0.1, open_share=1.0, half_initial=True),
    _batched("gdn", "chunk", (2, 75, 4, 4, 64), scale=1, gate_divisor=0.01),
    _batched("gdn", "chunk", (2, 500, 3, 3, 60), scale=1),
    _batched("gdn", "chunk", (2, 1000, 3, 3, 64), scale=0.1, open_share=0.5),
    _batched("gdn", "chunk", (3, 1024, 4, 4, 100), scale=1, gate_divisor=0.1),
    _batched("gdn", "chunk", (4, 1024, 4, 4, 128), scale=0.1, l2norm=True),
    _batched("gdn", "chunk", (2, 1500, 4, 4, 128), scale=0.1, gate_divisor=10),
    _batched("gdn", "chunk", (4, 2048, 8, 8, 64), scale=0.1),
    _batched("gdn", "chunk", (2, 256, 2, 4, 64), scale=1),
    _batched("gdn", "chunk", (2, 512, 2, 8, 64), scale=1, gate_divisor=0.1, l2norm=True),
    _batched("gdn", "chunk", (2, 1024, 4, 8, 128), scale=0.1),
    *(
        _batched("gdn", "chunk size", (1, 64, 2, 4, 32), scale=0.1, dtype="float32", chunk=size)
        for size in (16, 32, 64)
    ),
    _batched("gdn", "beta", (2, 500, 4, 4, 64), scale=1, sigmoid=True),
    _batched("gdn", "beta", (3, 1024, 4, 4, 128), scale=0.1, sigmoid=True, twice=True, l2norm=True),
    _batched("gdn", "beta", (2, 1024, 4, 8, 128), scale=0.1, sigmoid=True, l2norm=True),
    _batched("gdn", "beta", (4, 2048, 8, 8, 64), scale=0.1, sigmoid=True, twice=True),
    _batched("gdn", "v first", (1, 63, 1, 1, 64), scale=1, v_first=True),
    _batched("gdn", "v first", (2, 500, 3, 3, 60), scale=1, v_first=True),
    _batched("gdn", "v first", (3, 1024, 4, 4, 128), scale=0.1, v_first=True),
    _batched("gdn", "v first", (4, 2048, 8, 8, 64), scale=0.1, v_first=True),
    _packed("gdn", "packed", (4, 4), 60, SHORT, half_initial=True),
    _packed("gdn", "packed", (4, 4), 64, THREE, half_initial=True),
    _packed("gdn", "packed", (4, 4), 64, THREE, open_share=0.5),
    _packed("gdn", "packed", (4, 4), 100, FIVE, half_initial=True),
    _packed("gdn", "packed", (2, 4), 64, THREE),
    _packed("gdn", "packed", (2, 8), 64, THREE),
    _packed("gdn", "prefill", (4, 4), 60, (0, 8192), half_initial=True),
    _batched("gdn", "gate", (2, 75, 4, 4, 64), scale=1, raw_gate=True, l2norm=True),
    _batched("gdn", "gate", (2, 500, 3, 3, 60), scale=1, raw_gate=True, bias=False),
    _batched("gdn", "gate", (2, 1000, 3, 3, 64), scale=0.1, raw_gate=True),
    _batched("gdn", "gate", (3, 1024, 4, 4, 100), scale=1, raw_gate=True, l2norm=True),
    _batched("gdn", "gate", (4, 1024, 4, 4, 128), scale=0.1, raw_gate=True, bias=False, l2norm=True),
    _batched("gdn", "gate", (4, 2048, 8, 8, 64), scale=0.1, raw_gate=True),
    _batched("gdn", "gate, groups", (2, 256, 2, 4, 64), scale=1, raw_gate=True),
    _batched("gdn", "gate, groups", (2, 512, 1, 4, 64), scale=0.1, raw_gate=True, bias=False),
    _batched("gdn", "gate, groups", (2, 512, 2, 8, 64), scale=1, raw_gate=True),
    _batched("gdn", "gate, groups", (2, 1024, 4, 8, 128), scale=0.1, raw_gate=True),
    _packed("gdn", "gate, packed", (4, 4), 60, SHORT, raw_gate=True),
    _packed("gdn", "gate, packed", (4, 4), 64, THREE, raw_gate=True, bias=False),
    _packed("gdn", "gate, packed", (4, 4), 64, THREE, raw_gate=True),
    _packed("gdn", "gate, packed", (4, 4), 100, FIVE, raw_gate=True),
]
