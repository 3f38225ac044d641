"""From settings and tensors to dr_problem and dr_options.

This module decides, for all ways to call, what shapes mean, what must be copied and what is allocated. It writes every
message about an argument. It runs when a plan is made, not in every call.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import NamedTuple

from . import _abi, _library
from ._settings import FLOATS, Settings
from ._views import BYTES, DTYPES, View, contiguous
from .errors import Invalid, WrongType

CHUNK = 64  # tokens between checkpoints="chunks"
# Bounds of the library.
MOST_SEQUENCES, MOST_HEADS, MOST_DK, MOST_DV = 65536, 65536, 256, 512


class Output(NamedTuple):
    """A tensor that every call allocates."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Request(NamedTuple):
    """A call in the terms of the library."""

    problem: _abi.Problem
    options: _abi.Options
    device: str
    pointers: tuple[str, ...]  # arguments whose memory the call uses
    outputs: tuple[Output, ...]
    copies: tuple[str, ...]  # arguments that must be made contiguous first; the other fields are then empty
    lengths: ctypes.Array | None  # memory of problem.seq_offsets
    late: bool = False  # lengths come with each call


class Sizes(NamedTuple):
    batched: bool  # [B, T, ...] of equal sequences
    leading: tuple[int, ...]  # axes of o before its heads
    num_seqs: int
    tokens: int  # of all sequences, or an upper bound
    seq_len: int  # batched
    heads_qk: int
    heads_v: int
    dk: int
    dv: int


def bucket_end(tokens: int) -> int:
    """The largest token count that a plan of late lengths serves. Eight buckets per doubling, none shorter than 64
    tokens: a plan costs tens of microseconds, and an eighth more tokens in its bound cost almost nothing.
    binding/key.c has the same function."""
    step = 64
    while 16 * step <= tokens:
        step *= 2
    return -(-tokens // step) * step


def expect(name: str, view: View, shape: tuple[int, ...], words: str) -> None:
    if view.shape != shape:
        raise Invalid(f"{name}: expected {list(shape)} ({words}), found {list(view.shape)}")


def expect_type(name: str, view: View, choices: tuple[str, ...]) -> None:
    if view.dtype not in choices:
        raise WrongType(f"{name}: expected {' or '.join(choices)}, found {view.dtype}")


def expect_list(name: str, view: View, length: int | None, words: str, choices: tuple[str, ...]) -> None:
    expect_type(name, view, choices)
    if len(view.shape) != 1 or (length is not None and view.shape[0] != length):
        wanted = f"[{length}]" if length is not None else "one axis"
        raise Invalid(f"{name}: expected {wanted} ({words}), found {list(view.shape)}")


def check_bounds(sizes: Sizes, witnesses: tuple[str, str, str, str]) -> Sizes:
    """`witnesses` are arguments that show the sequences of a batch, the heads, DK and DV."""
    batch, heads, key, value = witnesses
    for name, words, found, most in (
        (batch, "sequences", sizes.num_seqs, MOST_SEQUENCES),
        (heads, "heads", sizes.heads_v, MOST_HEADS),
        (key, "key channels (DK)", sizes.dk, MOST_DK),
        (value, "value channels (DV)", sizes.dv, MOST_DV),
    ):
        if not 1 <= found <= most:
            raise Invalid(f"{name}: expected 1 to {most} {words}, found {found}")
    return sizes


def check_late_lengths(settings: Settings, views: dict[str, View], host_offsets: list[int] | None) -> bool:
    """Do lengths come with each call?"""
    late = host_offsets is None and "seq_offsets" in views
    if settings.late_lengths and not late:
        found = "no seq_offsets" if host_offsets is None else "host_offsets"
        raise Invalid(f"late_lengths: expected seq_offsets and no host_offsets beside it, found {found}")
    return late


def _sizes(views: dict[str, View], num_offsets: int | None) -> Sizes:
    for name in ("q", "k", "v", "g", "beta"):
        if name not in views:
            raise Invalid(f"{name}: expected a tensor, found None")
    q, k, v = views["q"], views["k"], views["v"]
    if len(q.shape) not in (3, 4):
        raise Invalid(f"q: expected [B, T, HQK, DK] or [T, HQK, DK], found {list(q.shape)}")
    if len(v.shape) != len(q.shape):
        raise Invalid(f"v: expected {len(q.shape)} axes as q has, found {list(v.shape)}")
    leading, (heads_qk, dk), (heads_v, dv) = q.shape[:-2], q.shape[-2:], v.shape[-2:]
    expect("k", k, q.shape, "as q")
    if v.shape[:-2] != leading:
        raise Invalid(f"v: expected {list(leading)} ahead of its heads, as q has, found {list(v.shape[:-2])}")
    if heads_qk == 0:
        raise Invalid(f"q: expected 1 to {MOST_HEADS} heads, found 0")
    if heads_v % heads_qk != 0 or heads_v == 0:
        raise Invalid(f"v: expected a number of heads that is a multiple of q's {heads_qk}, found {heads_v}")
    batch = leading[0] if len(leading) == 2 else 1
    tokens = leading[-1]
    if num_offsets is not None:
        if batch != 1:
            raise Invalid(f"q: expected a batch of 1 with seq_offsets, found {batch}")
        sizes = Sizes(False, leading, num_offsets - 1, tokens, 0, heads_qk, heads_v, dk, dv)
        return check_bounds(sizes, ("seq_offsets", "v", "q", "v"))
    sizes = Sizes(tokens > 0, leading, batch, batch * tokens, tokens, heads_qk, heads_v, dk, dv)
    return check_bounds(sizes, ("q", "v", "q", "v"))


def _has_two_indices(view: View) -> bool:
    return any(stride == 0 and length > 1 for stride, length in zip(view.strides, view.shape))


def rows_fit(view: View, features: int) -> bool:
    """Can the library read this layout? `features` of the last axes are contiguous."""
    if _has_two_indices(view) or any(stride < 0 for stride, length in zip(view.strides, view.shape) if length > 1):
        return False
    inner = contiguous(view.shape[len(view.shape) - features :])
    given = view.strides[len(view.strides) - features :]
    lengths = view.shape[len(view.shape) - features :]
    return all(length <= 1 or mine == wanted for length, mine, wanted in zip(lengths, given, inner))


def layout_of(view: View, sizes: Sizes, has_features: bool) -> _abi.Layout:
    # The stride of an axis with one index is arbitrary, and keys of plans leave it out: the plan does, too.
    own = zip(view.strides, contiguous(view.shape), view.shape)
    strides = [dense if length <= 1 else stride for stride, dense, length in own]
    if has_features:
        strides.pop()
    layout = _abi.Layout(token=strides[-2], head=strides[-1], alignment_bytes=view.alignment)
    if sizes.batched and len(strides) == 3:
        layout.sequence = strides[0]
    return layout


def _state(
    name: str, view: View | None, sizes: Sizes, settings: Settings, slots: int, index: View | None, dtype: str
) -> _abi.State:
    matrix = (sizes.dk, sizes.dv) if settings.state_layout == "key_major" else (sizes.dv, sizes.dk)
    state = _abi.State(
        use=_abi.STATE_ROWS if index is None else _abi.STATE_SLOTS,
        layout=_abi.LAYOUTS[settings.state_layout],
        dtype=_abi.DTYPES[view.dtype if view else dtype],
        num_slots=slots,
    )
    if index is not None:
        state.index_dtype = _abi.DTYPES[index.dtype]
        if settings.null_index is not None and name != "checkpoint":  # its rows are the caller's own
            state.has_null_index, state.null_index = 1, settings.null_index
    if view is not None:
        axes = "[slots, HV, DV, DK]" if settings.state_layout == "value_major" else "[slots, HV, DK, DV]"
        if len(view.shape) != 4 or view.shape[1:] != (sizes.heads_v, *matrix):
            raise Invalid(
                f"{name}: expected [*, {sizes.heads_v}, {matrix[0]}, {matrix[1]}] ({axes}), found {list(view.shape)}"
            )
        if view.shape[0] == 0 and slots > 0:  # the library would take num_slots = 0 for as many as there are rows
            raise Invalid(f"{name}: expected at least one state, found {list(view.shape)}")
        state.num_slots = view.shape[0]
        state.stride_slot = view.strides[0] if view.shape[0] > 1 else 0
        state.stride_head = view.strides[1] if view.shape[1] > 1 else 0
        state.alignment_bytes = view.alignment
    return state


def _num_checkpoints(settings: Settings, sizes: Sizes, lengths: list[int] | None) -> int:
    """Rows of all sequences, or a bound if only the device knows the lengths."""
    every = CHUNK if settings.checkpoints == "chunks" else int(settings.checkpoints or 0)
    rounded = 0 if settings.checkpoints != "chunks" else every - 1
    if lengths is None and sizes.batched:
        lengths = [sizes.seq_len] * sizes.num_seqs
    if lengths is None:
        return sizes.tokens // every + (sizes.num_seqs if rounded else 0)
    return sum((length + rounded) // every for length in lengths)


def _check_device(views: dict[str, View], host: set[str]) -> str:
    device = views["q"].device
    for name, view in views.items():
        if name not in host and view.device != device:
            raise Invalid(f"{name}: expected device {device} as q, found {view.device}")
    return device


def options_of(settings: Settings, device: str) -> _abi.Options:
    cut, value = settings.cuts()
    options = _abi.Options(
        segments=cut, segment_value=value, threads=settings.threads, invariant=int(settings.invariant)
    )
    for name in ("backend", "isa", "variant", "policy"):
        text = getattr(settings, name)
        if text is not None:
            setattr(options, name, text.encode())
    options.carry, options.math = _abi.CARRIES[settings.carry], _abi.MATHS[settings.math]
    options.carry_log_decay = settings.carry_log_decay or 0
    if device != "cpu":
        options.device = ctypes.pointer(_library.find_device(device))
    return options


def check_parameters(settings: Settings, views: dict[str, View], sizes: Sizes) -> None:
    raw = settings.gate in ("softplus", "bounded")
    width = sizes.dk if settings.rule == "kda" else 1
    for name, elements, words in (
        ("a_log", sizes.heads_v, "HV"),
        ("dt_bias", sizes.heads_v * width, "HV * DK" if width > 1 else "HV"),
    ):
        view = views.get(name)
        if view is None:
            continue
        if not raw:
            raise Invalid(f"{name}: expected None with gate={settings.gate!r}, found a tensor")
        expect_type(name, view, FLOATS)
        count = 1
        for length in view.shape:
            count *= length
        if count != elements:
            raise Invalid(f"{name}: expected {elements} elements ({words}), found {list(view.shape)}")
    if settings.gate == "softplus" and "a_log" not in views:
        raise Invalid("a_log: expected a tensor with gate='softplus', found None")


def _check_rows(settings: Settings, views: dict[str, View], sizes: Sizes) -> None:
    q = views["q"]
    expect_type("q", q, FLOATS)
    for name in ("k", "v"):
        expect_type(name, views[name], (q.dtype,))
    heads = (*sizes.leading, sizes.heads_v)
    if settings.rule == "kda":
        expect("g", views["g"], (*heads, sizes.dk), "a gate per key channel: v's tokens and heads, DK")
    else:
        expect("g", views["g"], heads, "a gate per head: v's tokens and heads")
    expect("beta", views["beta"], heads, "v's tokens and heads")
    for name in ("g", "beta"):
        expect_type(name, views[name], FLOATS)
    if "o" in views:
        expect("o", views["o"], views["v"].shape, "as v")
        expect_type("o", views["o"], FLOATS)


def _copies(views: dict[str, View], rule: str) -> tuple[str, ...]:
    """Arguments whose layout the library cannot read. Outputs are never copied."""
    copies = []
    for name, view in views.items():
        features = {"q": 1, "k": 1, "v": 1, "o": 1, "g": 1 if rule == "kda" else 0, "beta": 0}.get(name)
        if features is None:
            features = 2 if name in ("initial", "final", "checkpoint") else len(view.shape)
        aligned = view.alignment >= BYTES.get(view.dtype, 1)
        if 0 in view.shape or (aligned and rows_fit(view, features)):
            continue
        if name in ("o", "final", "checkpoint", "report"):
            raise Invalid(
                f"{name}: expected contiguous inner axes and distinct elements, found strides {list(view.strides)}"
            )
        copies.append(name)
    return tuple(copies)


def _check_offsets(name: str, offsets: list[int], tokens: int) -> None:
    """The library has the same rules; here the argument that was read is known."""
    if offsets[0] != 0:
        raise Invalid(f"{name}[0]: expected 0, found {offsets[0]}")
    if offsets[-1] <= tokens and offsets == sorted(offsets):
        return
    for n, (before, offset) in enumerate(itertools.pairwise(offsets), 1):
        if offset < before:
            raise Invalid(f"{name}[{n}]: expected at least {before}, the offset before it, found {offset}")
        if offset > tokens:
            raise Invalid(f"{name}[{n}]: expected at most {tokens}, the tokens of this call, found {offset}")


def set_lengths(
    problem: _abi.Problem, settings: Settings, sizes: Sizes, views: dict[str, View], host_offsets: list[int] | None
) -> tuple[list[int] | None, ctypes.Array | None]:
    """Lengths of the sequences, if they are known and differ, and the memory of problem.seq_offsets."""
    problem.num_seqs = sizes.num_seqs
    if host_offsets is not None:
        _check_offsets("seq_offsets" if "seq_offsets" in views else "host_offsets", host_offsets, sizes.tokens)
        array = (ctypes.c_int64 * len(host_offsets))(*host_offsets)
        problem.seq_offsets, problem.seq_offsets_dtype = ctypes.addressof(array), _abi.DTYPES["int64"]
        problem.num_tokens = sizes.tokens
        return [end - begin for begin, end in itertools.pairwise(host_offsets)], array
    if "seq_offsets" in views:
        problem.seq_offsets_dtype = _abi.DTYPES[views["seq_offsets"].dtype]
        problem.num_tokens = bucket_end(sizes.tokens) if settings.buckets else sizes.tokens
        return None, None
    if sizes.batched:
        problem.seq_len = sizes.seq_len
        return None, None
    # Batched sequences without tokens are packed sequences for the library.
    array = (ctypes.c_int64 * (sizes.num_seqs + 1))()
    problem.seq_offsets, problem.seq_offsets_dtype = ctypes.addressof(array), _abi.DTYPES["int64"]
    return [0] * sizes.num_seqs, array


def build(settings: Settings, views: dict[str, View], host_offsets: list[int] | None) -> Request:
    """`views` of the given arguments; `host_offsets` are the lengths as offsets if they are known on the host."""
    late = check_late_lengths(settings, views, host_offsets)
    num_offsets = len(host_offsets) if host_offsets is not None else None
    if late:
        expect_list("seq_offsets", views["seq_offsets"], None, "N + 1 offsets", ("int32", "int64"))
        num_offsets = views["seq_offsets"].shape[0]
    if num_offsets is not None and num_offsets < 2:
        raise Invalid(f"seq_offsets: expected at least 2 entries, found {num_offsets}")
    sizes = _sizes(views, num_offsets)
    device = _check_device(views, set() if late else {"seq_offsets"})
    _check_rows(settings, views, sizes)
    check_parameters(settings, views, sizes)
    copies = _copies(views, settings.rule)
    options = options_of(settings, settings.device or device)
    problem = _abi.Problem(rule=_abi.RULES[settings.rule])
    if copies:
        return Request(problem, options, device, (), (), copies, None)

    lengths, array = set_lengths(problem, settings, sizes, views, host_offsets)
    problem.heads_qk, problem.heads_v, problem.dk, problem.dv = sizes.heads_qk, sizes.heads_v, sizes.dk, sizes.dv
    problem.dtype = _abi.DTYPES[views["q"].dtype]
    problem.dtype_gate, problem.dtype_beta = _abi.DTYPES[views["g"].dtype], _abi.DTYPES[views["beta"].dtype]
    problem.dtype_o = _abi.DTYPES[views["o"].dtype if "o" in views else settings.o_dtype or views["q"].dtype]
    for name in ("a_log", "dt_bias"):
        if name in views:
            setattr(problem, f"dtype_{name}", _abi.DTYPES[views[name].dtype])
    problem.gate_form, problem.beta_form = _abi.GATES[settings.gate], _abi.BETAS[settings.beta]
    problem.l2norm = int(settings.l2norm)
    if settings.scale is not None:
        problem.scale_given, problem.scale = 1, settings.scale
    problem.lower_bound, problem.gate_floor = settings.lower_bound or 0, settings.gate_floor or 0
    for name in ("q", "k", "v", "beta", "g", "o"):
        if name in views:
            has_features = name not in ("beta",) and not (name == "g" and settings.rule == "gdn")
            setattr(problem, f"layout_{name}", layout_of(views[name], sizes, has_features))

    outputs = set_states(problem, settings, views, sizes, lengths)
    if "o" not in views:
        outputs.insert(0, Output("o", views["v"].shape, settings.o_dtype or views["q"].dtype))
    if "report" in views:
        expect_list("report", views["report"], 1, "one word", ("int32",))
    pointers = tuple(name for name in views if name != "seq_offsets" or late)
    return Request(problem, options, device, pointers, tuple(outputs), (), array, late)


def set_states(
    problem: _abi.Problem, settings: Settings, views: dict[str, View], sizes: Sizes, lengths: list[int] | None
) -> list[Output]:
    """Pools, their indices and masks. Returns what must be allocated."""
    outputs = []
    n, matrix = sizes.num_seqs, (sizes.dv, sizes.dk) if settings.state_layout == "value_major" else (sizes.dk, sizes.dv)

    def index_of(pool: str, rows: int | None) -> View | None:
        index = views.get(f"{pool}_index")
        if index is not None:
            expect_list(f"{pool}_index", index, rows, "a slot each", ("int32", "int64"))
            if pool not in views:
                raise Invalid(f"{pool}_index: expected None without a pool {pool}, found a tensor")
        return index

    def check_rows(pool: str, rows: int) -> None:
        if f"{pool}_index" not in views and views[pool].shape[0] != rows:
            raise Invalid(f"{pool}: expected {rows} states, one a sequence, found {views[pool].shape[0]}")

    for pool in ("initial", "final", "checkpoint"):
        if pool in views:
            expect_type(pool, views[pool], FLOATS)
    index = index_of("initial", n)
    if "initial" in views:
        problem.initial = _state("initial", views["initial"], sizes, settings, n, index, "fp32")
        check_rows("initial", n)
    if "has_initial" in views:
        if "initial" not in views:
            raise Invalid("has_initial: expected None without initial, found a tensor")
        expect_list("has_initial", views["has_initial"], n, "one a sequence", ("bool", "uint8"))
        problem.initial_mask = 1
    index = index_of("final", n)
    if "final" in views:
        problem.final = _state("final", views["final"], sizes, settings, n, index, "fp32")
        check_rows("final", n)
    elif settings.final:
        problem.final = _state("final", None, sizes, settings, n, None, settings.final_dtype)
        outputs.append(Output("final", (n, sizes.heads_v, *matrix), settings.final_dtype))
    if settings.checkpoints is None:
        for name in ("checkpoint", "checkpoint_index", "checkpoint_offsets", "checkpoint_positions"):
            if name in views:
                raise Invalid(f"{name}: expected None without checkpoints, found a tensor")
        return outputs
    if settings.checkpoints == "list":
        for name, length in (("checkpoint_offsets", n + 1), ("checkpoint_positions", None)):
            if name not in views:
                raise Invalid(f"{name}: expected a tensor with checkpoints='list', found None")
            expect_list(name, views[name], length, "int32", ("int32",))
        problem.checkpoints, rows = _abi.CHECKPOINTS_LIST, views["checkpoint_positions"].shape[0]
    else:
        chunks = settings.checkpoints == "chunks"
        problem.checkpoints = _abi.CHECKPOINTS_CHUNKS if chunks else _abi.CHECKPOINTS_EVERY
        problem.checkpoint_every = 0 if chunks else int(settings.checkpoints)
        rows = _num_checkpoints(settings, sizes, lengths)
    index = index_of("checkpoint", None)
    if index is not None and index.shape[0] < rows:
        raise Invalid(
            f"checkpoint_index: expected at least {rows} entries, one for each checkpoint, found {index.shape[0]}"
        )
    if "checkpoint" in views:
        problem.checkpoint = _state("checkpoint", views["checkpoint"], sizes, settings, rows, index, "fp32")
    else:
        dtype = settings.checkpoint_dtype or settings.final_dtype
        dtype = views["q"].dtype if dtype == "q" else dtype
        problem.checkpoint = _state("checkpoint", None, sizes, settings, rows, None, dtype)
        outputs.append(Output("checkpoint", (rows, sizes.heads_v, *matrix), dtype))
    return outputs


def type_code(dtype: str) -> tuple[int, int]:
    return DTYPES[dtype][:2]
