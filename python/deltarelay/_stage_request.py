"""From the tensors of a stage to dr_problem and dr_chunks. Like _problem, it runs when a plan is made."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _abi
from ._problem import (
    Sizes,
    check_late_lengths,
    check_parameters,
    expect_list,
    expect_type,
    layout_of,
    options_of,
    rows_fit,
    set_lengths,
    set_states,
)
from ._settings import FLOATS, Settings
from ._stage_axes import FEATURES, Axes, sizes_of
from ._views import BYTES, View
from .errors import Invalid

CHUNKS = (16, 32, 64)
CHUNK_RANGE, CHUNK_WORDS = (min(CHUNKS), max(CHUNKS)), "16, 32 or 64"
ALIGNMENT = 16  # of intermediates, in bytes
_READ = ("q", "k", "v", "g", "beta")

_IN_FP32 = ("gate_sums", "summaries", "composed")


class Wish(NamedTuple):
    """What a stage is asked for, beside tensors and settings."""

    operation: str
    wanted: tuple[str, ...] = ()
    chunk: int = 64
    dtype: str | None = None
    states_dtype: str | None = None
    sums_base_2: bool = False


class Made(NamedTuple):
    """A tensor that a call allocates: `rows` says what its first axes are ("tokens", "chunks" or "sequences")."""

    name: str
    rows: str
    shape: tuple[int, ...]  # behind them
    dtype: str


class Request(NamedTuple):
    """A stage in the terms of the library. `device`, `options`, `problem` as in _problem.Request."""

    problem: _abi.Problem
    options: _abi.Options
    device: str
    outputs: tuple[Made, ...]
    pointers: tuple[str, ...]
    copies: tuple[str, ...]
    first: tuple[str, int]  # a tensor with a row for each token, and the number of its features
    sizes: Sizes
    num_chunks: int  # of all sequences; -1 if each call has its own
    late: bool
    memory: tuple[Any, ...]  # that the problem points to


# Which intermediates a stage may write, and whether one of them must be wanted.
_MAY_WANT = {
    "chunk_local": ("aqk", "inverse", "w", "u", "k_to_end", "q_from_start", "gate_sums"),
    "state_pass": ("states", "v_new"),
    "outputs": (),
    "summary": ("summaries",),
    "carry": ("states", "composed"),
}
_MUST_GIVE = {"state_pass": ("w", "u"), "outputs": ("v_new", "states"), "carry": ("summaries",)}


def reads(operation: str, given: set[str], wanted: tuple[str, ...]) -> dict[str, bool]:
    """Does a stage read q, k, v, g and beta? The same rules as Problem::reads() of the library."""

    def wants(*names: str) -> bool:
        return any(name in wanted for name in names)

    sums = "gate_sums" in given
    if operation == "chunk_local":
        solved = "inverse" in given
        decays = any(name != "u" for name in wanted) or not solved
        answers = (
            wants("aqk", "q_from_start"),
            wants("aqk", "inverse", "w", "k_to_end") or (wants("u") and not solved),
            wants("u"),
            decays and not sums,
            wants("inverse", "w", "u"),
        )
    elif operation == "state_pass":
        answers = (False, "k_to_end" not in given, False, not sums, False)
    elif operation == "outputs":
        scored = "aqk" in given
        decayed = scored and "q_from_start" in given
        answers = (not decayed, not scored, False, not decayed and not sums, False)
    elif operation == "summary":
        solved = "w" in given
        answers = (False, "k_to_end" not in given, not solved, not sums, not solved)
    else:
        answers = (False,) * 5
    return dict(zip(_READ, answers))


def _check_wish(wish: Wish) -> None:
    allowed = _MAY_WANT[wish.operation]
    for name in wish.wanted:
        if name not in allowed:
            raise Invalid(f"wanted: expected names of {', '.join(allowed)}, found {name!r}")
    if wish.operation == "chunk_local" and not wish.wanted:
        raise Invalid(f"wanted: expected at least one of {', '.join(allowed)}, found none")
    if wish.operation != "carry" and wish.chunk not in CHUNKS:
        raise Invalid(f"chunk: expected {CHUNK_WORDS}, found {wish.chunk!r}")


def _check_presence(wish: Wish, views: dict[str, View], has_final: bool) -> None:
    given = {name for name in _abi.INTERMEDIATES if name in views}
    for name in _MUST_GIVE.get(wish.operation, ()):
        if name not in given:
            raise Invalid(f"{name}: expected a tensor, found None")
    solved = [name for name in ("w", "u") if name in given]
    if wish.operation == "summary" and len(solved) == 1:
        raise Invalid(f"{'u' if solved == ['w'] else 'w'}: expected a tensor beside {solved[0]}, found None")
    if wish.operation == "summary" and given and not solved:
        raise Invalid(f"{min(given)}: expected None without w and u, found a tensor")
    if wish.operation in ("state_pass", "carry") and not wish.wanted and not has_final:
        allowed = ", ".join(_MAY_WANT[wish.operation])
        raise Invalid(f"wanted: expected at least one of {allowed}, or final states, found neither")
    both = sorted(given & set(wish.wanted))
    if both:
        raise Invalid(f"wanted: expected nothing that is given, found {both[0]!r}")
    for name, is_read in reads(wish.operation, given, wish.wanted).items():
        if is_read and name not in views:
            raise Invalid(f"{name}: expected a tensor, found None")
        if name in views and not is_read:
            raise Invalid(
                f"{name}: expected None (what is given and wanted leaves nothing to read it for), found a tensor"
            )


def most_chunks(tokens: int, sequences: int, chunk: int) -> int:
    """The bound on the number of chunks where only the device knows the lengths. The library has the same."""
    return min(tokens, tokens // chunk + sequences)


def _num_chunks(wish: Wish, sizes: Sizes, lengths: list[int] | None) -> int:
    if lengths is None:
        lengths = [sizes.seq_len] * sizes.num_seqs
    return sum(-(-length // wish.chunk) for length in lengths)


def _types(wish: Wish, views: dict[str, View]) -> tuple[str, str, str]:
    """Types of q, k and v, of intermediates, and of states."""
    for name in ("g", "beta", "o", "states"):
        if name in views:
            expect_type(name, views[name], FLOATS)
    for name in _IN_FP32:
        if name in views:
            expect_type(name, views[name], ("fp32",))

    def common(names: tuple[str, ...]) -> tuple[str | None, str]:
        present = [name for name in names if name in views]
        for name in present:
            first = views[present[0]].dtype
            expect_type(name, views[name], FLOATS if name == present[0] else (first,))
        return (views[present[0]].dtype, present[0]) if present else (None, "")

    data, _ = common(("q", "k", "v"))
    stored, witness = common(tuple(n for n in _abi.INTERMEDIATES if n not in (*_IN_FP32, "states")))
    if stored is not None and wish.dtype not in (None, stored):
        raise Invalid(f"dtype: expected None or {stored!r} as {witness} has, found {wish.dtype!r}")
    stored = stored or wish.dtype or data or "fp32"
    states = wish.states_dtype or ("fp32" if wish.operation == "carry" else stored)
    if "states" in views:
        states = views["states"].dtype
    return data or stored, stored, states


def _copies(views: dict[str, View], rule: str) -> tuple[str, ...]:
    """Arguments whose layout the library cannot read. Outputs are never copied."""
    copies = []
    for name, view in views.items():
        aligned = view.alignment >= BYTES.get(view.dtype, 1)
        if name in _abi.INTERMEDIATES:
            features, aligned = len(view.shape), view.alignment >= ALIGNMENT
        elif name in ("initial", "final"):
            features = 2
        elif name in FEATURES:
            features = 0 if name == "beta" or (name == "g" and rule == "gdn") else 1
        else:
            features = len(view.shape)
        if 0 in view.shape or (aligned and rows_fit(view, features)):
            continue
        if name in ("o", "final", "report"):
            raise Invalid(
                f"{name}: expected contiguous inner axes and distinct elements, found strides {list(view.strides)}"
            )
        copies.append(name)
    return tuple(copies)


def _check_device(views: dict[str, View], first: str, late: bool) -> str:
    device = views[first].device
    for name, view in views.items():
        if view.device != device and not (name == "seq_offsets" and not late):
            raise Invalid(f"{name}: expected device {device} as {first}, found {view.device}")
    return device


def _outputs(wish: Wish, settings: Settings, views: dict[str, View], axes: Axes, sizes: Sizes, types: Any) -> Any:
    data, stored, states = types
    made = []
    lengths = {"HV": sizes.heads_v, "DK": sizes.dk, "DV": sizes.dv, "C": wish.chunk, "DV + DK": sizes.dv + sizes.dk}
    for name in wish.wanted:
        shape = tuple(lengths[axis] for axis in axes.axes_of(name, settings.state_layout == "key_major"))
        rows = {"summaries": "sequences", "composed": "sequences", "states": "chunks"}.get(name, "tokens")
        if name == "states" and wish.operation == "carry":
            rows = "tokens"
        dtype = "fp32" if name in _IN_FP32 else states if name == "states" else stored
        made.append(Made(name, rows, shape, dtype))
    if wish.operation == "outputs" and "o" not in views:
        made.append(Made("o", "tokens", (sizes.heads_v, sizes.dv), settings.o_dtype or data))
    return made


def build(wish: Wish, settings: Settings, views: dict[str, View], host_offsets: list[int] | None) -> Request:
    """`views` of the given arguments; `host_offsets` are the lengths as offsets if they are known on the host."""
    _check_wish(wish)
    _check_presence(wish, views, settings.final or "final" in views)
    if not reads(wish.operation, set(views), wish.wanted)["g"]:  # then a raw gate's parameters are not read either
        views = {name: view for name, view in views.items() if name not in ("a_log", "dt_bias")}
    late = check_late_lengths(settings, views, host_offsets)
    num_offsets = len(host_offsets) if host_offsets is not None else None
    if late:
        expect_list("seq_offsets", views["seq_offsets"], None, "N + 1 offsets", ("int32", "int64"))
        num_offsets = views["seq_offsets"].shape[0]
    if num_offsets is not None and num_offsets < 2:
        raise Invalid(f"seq_offsets: expected at least 2 entries, found {num_offsets}")

    axes = Axes(settings.rule, wish.chunk)
    key_major = settings.state_layout == "key_major"
    of_sequences = ("states",) if wish.operation != "carry" else ()
    for name in FEATURES:  # q first: errors of other tensors then say "as q"
        if name in views and name not in of_sequences and name != "o":
            axes.learn_rows(name, views[name], key_major)
    if of_sequences and "states" in views:
        if len(views["states"].shape) != 4:
            raise Invalid(f"states: expected [chunks, HV, ..], found {list(views['states'].shape)}")
        axes.learn("states", axes.axes_of("states", key_major), views["states"].shape[1:])
    sizes = sizes_of(axes, num_offsets)
    if "o" in views:
        axes.learn_rows("o", views["o"], key_major)
    device = _check_device(views, axes.first[0], late)
    types = _types(wish, views)
    if reads(wish.operation, set(views), wish.wanted)["g"]:
        check_parameters(settings, views, sizes)
    read = {name: view for name, view in views.items() if name != "seq_offsets" or late}
    copies = _copies(read, settings.rule)
    options = options_of(settings, settings.device or device)
    problem = _abi.Problem(rule=_abi.RULES[settings.rule], op=_abi.OPERATIONS[wish.operation])
    if copies:
        return Request(problem, options, device, (), (), copies, axes.first, sizes, 0, late, ())

    lengths, array = set_lengths(problem, settings, sizes, views, host_offsets)
    rows = -1 if late or wish.operation == "carry" else _num_chunks(wish, sizes, lengths)
    if "states" in views and not late and views["states"].shape[0] != rows:
        found = views["states"].shape[0]
        raise Invalid(f"states: expected {rows} rows, one for each chunk of {wish.chunk} tokens, found {found}")
    chunks = _set_chunks(problem, wish, settings, views, types)
    _set_forms(problem, settings, views, sizes, types[0])
    made = _outputs(wish, settings, views, axes, sizes, types)
    for output in set_states(problem, settings, views, sizes, lengths):
        made.append(Made(output.name, "sequences", output.shape[1:], output.dtype))
    if "report" in views:
        expect_list("report", views["report"], 1, "one word", ("int32",))
    pointers = tuple(name for name in views if name != "seq_offsets" or late)
    memory = (array, chunks)
    return Request(problem, options, device, tuple(made), pointers, (), axes.first, sizes, rows, late, memory)


def _set_chunks(
    problem: _abi.Problem, wish: Wish, settings: Settings, views: dict[str, View], types: tuple[str, str, str]
) -> _abi.Chunks:
    bits = {name: 1 << index for index, name in enumerate(_abi.INTERMEDIATES)}
    chunks = _abi.Chunks(
        chunk=0 if wish.operation == "carry" else wish.chunk,
        given=sum(bit for name, bit in bits.items() if name in views),
        wanted=sum(bits[name] for name in wish.wanted),
        dtype=_abi.DTYPES[types[1]],
        sums_base_2=int(wish.sums_base_2),
    )
    if "states" in views or "states" in wish.wanted:
        chunks.dtype_states = _abi.DTYPES[types[2]]
        chunks.states_layout = _abi.LAYOUTS[settings.state_layout]
    problem.chunks = ctypes.addressof(chunks)
    return chunks


def _set_forms(problem: _abi.Problem, settings: Settings, views: dict[str, View], sizes: Sizes, data: str) -> None:
    """Heads, widths, types, gate and beta forms, strides."""
    problem.heads_qk, problem.heads_v, problem.dk, problem.dv = sizes.heads_qk, sizes.heads_v, sizes.dk, sizes.dv
    problem.dtype = _abi.DTYPES[data]
    problem.dtype_o = _abi.DTYPES[views["o"].dtype if "o" in views else settings.o_dtype or data]
    for name, field in (("g", "gate"), ("beta", "beta"), ("a_log", "a_log"), ("dt_bias", "dt_bias")):
        if name in views:
            setattr(problem, f"dtype_{field}", _abi.DTYPES[views[name].dtype])
    problem.gate_form, problem.beta_form = _abi.GATES[settings.gate], _abi.BETAS[settings.beta]
    problem.l2norm = int(settings.l2norm)
    if settings.scale is not None:
        problem.scale_given, problem.scale = 1, settings.scale
    problem.lower_bound, problem.gate_floor = settings.lower_bound or 0, settings.gate_floor or 0
    for name in ("q", "k", "v", "beta", "g", "o"):
        if name in views:
            has_features = name != "beta" and not (name == "g" and settings.rule == "gdn")
            setattr(problem, f"layout_{name}", layout_of(views[name], sizes, has_features))


__all__ = ["Made", "Request", "Wish", "build", "most_chunks", "reads"]
