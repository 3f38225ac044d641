"""Axes of the tensors of a stage, and the sizes of a call that they show."""

from __future__ import annotations

from ._problem import Sizes, check_bounds
from ._views import View
from .errors import Invalid

# Features of the tensors with a row for each token, and of the intermediates behind their first axis.
FEATURES = {
    "q": ("HQK", "DK"),
    "k": ("HQK", "DK"),
    "v": ("HV", "DV"),
    "g": ("HV", "GATES"),
    "beta": ("HV",),
    "o": ("HV", "DV"),
    "aqk": ("HV", "C"),
    "inverse": ("HV", "C"),
    "w": ("HV", "DK"),
    "u": ("HV", "DV"),
    "k_to_end": ("HV", "DK"),
    "q_from_start": ("HV", "DK"),
    "gate_sums": ("HV", "GATES"),
    "v_new": ("HV", "DV"),
    "states": ("HV", "MATRIX"),
    "summaries": ("HV", "SUMMARY"),
    "composed": ("HV", "SUMMARY"),
}


def features_of(name: str, rule: str) -> int:
    """Number of axes behind the token axis; -1 if a tensor has none."""
    features = FEATURES.get(name)
    if features is None:
        return -1
    return 1 if rule == "gdn" and features[-1] == "GATES" else len(features) + (features[-1] in ("MATRIX", "SUMMARY"))


class Axes:
    """Lengths of the axes of a call, as its tensors show them."""

    def __init__(self, rule: str, chunk: int) -> None:
        self.rule = rule
        self.known: dict[str, tuple[int, str]] = {"C": (chunk, "chunk")}
        self.leading: tuple[int, ...] | None = None
        self.first = ("", 0)

    def __getitem__(self, axis: str) -> int:
        return self.known[axis][0]

    def axes_of(self, name: str, key_major: bool) -> tuple[str, ...]:
        """Axes behind the first ones."""
        features = FEATURES[name]
        if features[-1] == "GATES":
            return (features[0], "DK") if self.rule == "kda" else features[:1]
        if features[-1] == "MATRIX":
            return ("HV", "DK", "DV") if key_major else ("HV", "DV", "DK")
        return ("HV", "DV + DK", "DK") if features[-1] == "SUMMARY" else features

    def learn(self, name: str, axes: tuple[str, ...], lengths: tuple[int, ...]) -> None:
        for axis, length in zip(axes, lengths):
            if axis == "DV + DK":
                if length <= lengths[-1]:
                    raise Invalid(f"{name}: expected [.., DV + DK, DK], found [.., {length}, {lengths[-1]}]")
                axis, length = "DV", length - lengths[-1]
            expected, witness = self.known.setdefault(axis, (length, name))
            if expected != length:
                raise Invalid(
                    f"{name}: expected [.., {', '.join(axes)}] with {axis} = {expected} as {witness} has, found "
                    f"[.., {', '.join(map(str, lengths))}]"
                )

    def learn_rows(self, name: str, view: View, key_major: bool) -> None:
        """A tensor with a row for each token."""
        axes = self.axes_of(name, key_major)
        if len(view.shape) - len(axes) not in (1, 2):
            words = ", ".join(axes)
            raise Invalid(f"{name}: expected [B, T, {words}] or [T, {words}], found {list(view.shape)}")
        leading = view.shape[: -len(axes)]
        if self.leading is None:
            self.leading, self.first = leading, (name, len(axes))
        if leading != self.leading:
            raise Invalid(
                f"{name}: expected {list(self.leading)} ahead of its heads, as {self.first[0]} has, found "
                f"{list(leading)}"
            )
        self.learn(name, axes, view.shape[len(leading) :])


def sizes_of(axes: Axes, num_offsets: int | None) -> Sizes:
    leading = axes.leading
    assert leading is not None  # every stage has a tensor with rows
    heads_v, witness = axes.known["HV"]
    heads_qk = axes.known.get("HQK", (heads_v, ""))[0]
    if heads_qk == 0 or heads_v == 0 or heads_v % heads_qk != 0:
        raise Invalid(
            f"{witness}: expected a number of heads that is a multiple of the {heads_qk} of q and k, found {heads_v}"
        )
    (dk, key), (dv, value) = (
        axes.known.get(axis, (1, "")) for axis in ("DK", "DV")
    )  # 1: nothing of that width is read
    batch, tokens = leading[0] if len(leading) == 2 else 1, leading[-1]
    if num_offsets is None:
        sizes = Sizes(tokens > 0, leading, batch, batch * tokens, tokens, heads_qk, heads_v, dk, dv)
        return check_bounds(sizes, (axes.first[0], witness, key, value))
    if batch != 1:
        raise Invalid(f"{axes.first[0]}: expected a batch of 1 with seq_offsets, found {batch}")
    sizes = Sizes(False, leading, num_offsets - 1, tokens, 0, heads_qk, heads_v, dk, dv)
    return check_bounds(sizes, ("seq_offsets", witness, key, value))
