"""Types of arguments, for type checkers and editors. Nothing here is looked at during a call."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict, TypeVar


class Tensor(Protocol):
    """A torch.Tensor or a numpy.ndarray. All of one call are of one kind and device."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...


AnyTensor = TypeVar("AnyTensor", bound=Tensor)

Rule = Literal["kda", "gdn"]
Gate = Literal["log", "linear", "softplus", "bounded"]
BetaForm = Literal["value", "logit", "twice_logit"]
StateLayout = Literal["value_major", "key_major"]
FloatType = Literal["fp32", "bf16", "fp16"]
TensorType = Literal["fp32", "bf16", "fp16", "int32", "int64", "uint8", "bool"]
Carry = Literal["exact", "truncated"]
Math = Literal["default", "tf32"]
Form = Literal["text", "json", "signature", "svg"]
# Results of the stages.
ChunkResult = Literal["aqk", "inverse", "w", "u", "k_to_end", "q_from_start", "gate_sums"]
PassResult = Literal["states", "v_new"]
CarryResult = Literal["states", "composed"]


class Options(TypedDict, total=False):
    """Keywords of `forward` that do not decide which results there are."""

    scale: float | None
    l2norm: bool
    gate: Gate
    a_log: Any
    dt_bias: Any
    lower_bound: float | None
    gate_floor: float | None
    beta_form: BetaForm
    seq_offsets: Any
    host_offsets: Any
    initial: Any
    initial_index: Any
    has_initial: Any
    final_index: Any
    final_dtype: FloatType
    state_layout: StateLayout
    null_index: int | None
    checkpoint: Any
    checkpoint_index: Any
    checkpoint_offsets: Any
    checkpoint_positions: Any
    o: Any
    o_dtype: FloatType | None
    report: Any
    segments: int | str
    backend: str | None
    variant: str | None
    isa: str | None
    policy: str | None
    threads: int
    invariant: bool
    carry: Carry
    carry_log_decay: float | None
    math: Math
    late_lengths: bool


class PlanOptions(Options, total=False):
    """Keywords of `plan` and `explain`."""

    final: Any
    checkpoints: int | Literal["chunks", "list"] | None
