"""Messages of the library in the words of Python's callers.

The library names fields of its C structures ("options.threads") and constants of its header ("DR_STATE_ROWS"). A caller
in Python knows arguments of `deltarelay.forward` and of the stages. Errors come through `in_python_words`, whatever
call they are of; a cached call that succeeds never does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Fields of dr_problem, dr_options, dr_chunks and dr_device that have another name in Python, or none. Those that are
# not here keep their name. A reason of a backend has fields without their structure.
_FIELDS = {
    "op": "stage",
    "num_seqs": "sequences",
    "num_tokens": "tokens",
    "seq_len": "tokens",
    "seq_offsets_dtype": "seq_offsets",
    "heads_qk": "heads of q",
    "heads_v": "heads of v",
    "dk": "DK",
    "dv": "DV",
    "dtype_o": "o_dtype",
    "dtype_gate": "type of g",
    "dtype_beta": "type of beta",
    "dtype_a_log": "type of a_log",
    "dtype_dt_bias": "type of dt_bias",
    "dtype_states": "states_dtype",
    "gate_form": "gate",
    "scale_given": "scale",
    "initial_mask": "has_initial",
    "checkpoint_every": "checkpoints",
    "states_layout": "state_layout",
    "segment_value": "segments",
}
# Fields of dr_layout and dr_state, as what they are of a tensor.
_PARTS = {
    "token": "stride of its tokens",
    "head": "stride of its heads",
    "sequence": "stride of its batch",
    "stride_slot": "stride of its states",
    "stride_head": "stride of its heads",
    "alignment_bytes": "alignment in bytes",
    "layout": "state_layout",
    "dtype": "type",
    "index_dtype": "type of its index",
    "num_slots": "",
    "has_null_index": "null_index",
    "null_index": "null_index",
    "use": "",
    "reserved": "reserved",
}
_CONSTANTS = {
    "DR_KDA": "'kda'",
    "DR_GDN": "'gdn'",
    "DR_GATE_LOG": "'log'",
    "DR_GATE_LINEAR": "'linear'",
    "DR_GATE_RAW_SOFTPLUS": "'softplus'",
    "DR_GATE_RAW_BOUNDED": "'bounded'",
    "DR_BETA_VALUE": "'value'",
    "DR_BETA_LOGIT": "'logit'",
    "DR_BETA_TWICE_LOGIT": "'twice_logit'",
    "DR_STATE_VALUE_MAJOR": "'value_major'",
    "DR_STATE_KEY_MAJOR": "'key_major'",
    "DR_STATE_NONE": "None",
    "DR_STATE_ROWS": "states without an index",
    "DR_STATE_SLOTS": "a pool with an index",
    "DR_CHECKPOINTS_NONE": "None",
    "DR_CHECKPOINTS_EVERY": "a number of tokens",
    "DR_CHECKPOINTS_LIST": "'list'",
    "DR_CHECKPOINTS_CHUNKS": "'chunks'",
}
_TYPES = {"1": "fp32", "2": "bf16", "3": "fp16", "4": "int32", "5": "int64"}


def _part(owner: str, part: str) -> str:
    words = _PARTS.get(part, part)
    return f"{owner} ({words})" if words else owner


def _same_pool(found: re.Match[str]) -> str:
    what, final, initial = found.groups()
    if what == "dtype":
        final, initial = _TYPES.get(final, final), _TYPES.get(initial, initial)
    return f"because its {_PARTS.get(what, what)} is {final} and that of initial is {initial}"


_Rewrite = str | Callable[[re.Match[str]], str]
# Whole phrases, before single names. Values of arguments are written as Python writes them.
_PHRASES: tuple[tuple[str, _Rewrite], ...] = (
    (r"because problem\.final\.(\w+) is (\d+) and problem\.initial\.\w+ is (\d+)", _same_pool),
    (r"the address of tensors\.initial", "the memory of initial"),
    (
        r"^tensors\.checkpoint: expected at most num_slots = (\d+) rows, found (\d+)",
        r"checkpoint: expected at least \2 states, one for each checkpoint, found \1",
    ),
    (
        r"^options\.segment_value: expected a multiple of (.*), found (\d+)$",
        r"segments: expected a length that is a multiple of \1, found 'len:\2'",
    ),
    (r"below num_slots = (\d+), or", r"below \1, the states of the pool, or"),
    (r"at most num_tokens = (\d+)", r"at most \1, the tokens of this call"),
    (r"problem\.l2norm is 0", "l2norm=False"),
    (r"problem\.beta_form is the write strength itself", "beta_form='value'"),
    (r"options\.invariant is set", "invariant=True"),
    (r"options\.carry is exact", "carry='exact'"),
    (r"exact while ", "'exact' with "),
    (r" = heads_qk = ", " = "),
    (r"heads_qk = (\d+)", r"\1, the heads of q"),
    (r"checkpoints is not DR_CHECKPOINTS_LIST", "checkpoints is not 'list'"),
    (r"neither chunks\.given nor chunks\.wanted names it", "it is neither given nor wanted"),
    (r"\bas dtype\b", "as q"),
    (r"\bas chunks\.dtype\b", "as dtype"),
    (r"\bwith this dv\b", "with this DV"),
    (r"\bfor dv above\b", "for DV above"),
    (r"\bchunks\.given: expected W and U, found neither", "w, u: expected tensors, found None"),
    (r"\bchunks\.given: expected Q_FROM_START and AQK too", "q_from_start, aqk: expected tensors"),
    (r"\bchunks\.given: expected AQK too, with Q_FROM_START", "aqk: expected a tensor beside q_from_start"),
    (r"\bchunks\.given: expected K_TO_END too", "k_to_end: expected a tensor"),
    (r"\b(K_TO_END|Q_FROM_START)\b", lambda found: found.group(1).lower()),
    (r"\bl2norm: expected 0 where (.*), found 1", r"l2norm: expected False where \1, found True"),
    (r"\ba pointer\b", "a tensor"),
    (r"\bNULL\b", "None"),
)
_BARE = ("dk", "dv", "dtype_o", "dtype_gate", "dtype_beta", "heads_qk", "heads_v", "num_tokens", "num_seqs")
_NAMES = (
    r"\b(?:problem\.)?layout_(?P<tensor>\w+)\.(?P<axis>\w+)"
    r"|\bproblem\.(?P<pool>initial|final|checkpoint)\.(?P<part>\w+)"
    r"|\b(?:problem|options|chunks)\.(?:device\.)?(?P<field>\w+)"
    r"|\b(?:tensors|intermediates)\.(?P<pointer>\w+)"
    rf"|(?:^|(?<=: ))(?P<bare>{'|'.join(_BARE)})(?=: expected)"
    r"|\b(?P<constant>DR_\w+)(?: \(\d+\))?"
)


def _renamed(found: re.Match[str]) -> str:
    name = found.lastgroup or ""
    if name == "axis":
        return _part(found["tensor"], found["axis"])
    if name == "part":
        return _part(found["pool"], found["part"])
    if name == "constant":
        constant = found["constant"]
        return _CONSTANTS.get(constant, constant.removeprefix("DR_").lower())
    word = found[name]
    return word if name == "pointer" else _FIELDS.get(word, word)


def in_python_words(message: str) -> str:
    """The same message with the names of Python's arguments, and without the library's."""
    parts = re.split("('[^']*')", message)
    for index in range(0, len(parts), 2):  # between the texts in quotes, which are the caller's
        for pattern, words in _PHRASES:
            parts[index] = re.sub(pattern, words, parts[index])
        parts[index] = re.sub(_NAMES, _renamed, parts[index])
    return "".join(parts)


__all__ = ["in_python_words"]
