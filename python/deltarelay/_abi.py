"""The structures of deltarelay.h, field for field. tests/test_abi.py compares them with the header."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint32, c_void_p

# Names of the header's enumerations, as Python callers write them.
RULES = {"kda": 1, "gdn": 2}
DTYPES = {"fp32": 1, "bf16": 2, "fp16": 3, "int32": 4, "int64": 5}
GATES = {"log": 0, "linear": 1, "softplus": 2, "bounded": 3}
BETAS = {"value": 0, "logit": 1, "twice_logit": 2}
LAYOUTS = {"value_major": 1, "key_major": 2}
STATE_ROWS, STATE_SLOTS = 1, 2
CHECKPOINTS_EVERY, CHECKPOINTS_LIST, CHECKPOINTS_CHUNKS = 1, 2, 3
SEGMENTS_AUTO, SEGMENTS_OFF, SEGMENTS_COUNT, SEGMENTS_LENGTH = 0, 1, 2, 3
CARRIES = {"exact": 0, "truncated": 1}
MATHS = {"default": 0, "tf32": 1}
DESCRIBE = {"text": 0, "json": 1, "signature": 2}
DEVICE_CPU, DEVICE_CUDA = 1, 2
OPERATIONS = {"chunk_local": 2, "state_pass": 3, "outputs": 4, "summary": 5, "carry": 6}  # the stages

CONTRACT = 200  # DR_VERSION of the header that these structures come from


class Layout(ctypes.Structure):
    _fields_ = [
        ("token", c_int64),
        ("head", c_int64),
        ("sequence", c_int64),
        ("alignment_bytes", c_int32),
        ("reserved", c_int32),
    ]


class State(ctypes.Structure):
    _fields_ = [
        ("use", c_int32),
        ("layout", c_int32),
        ("dtype", c_int32),
        ("index_dtype", c_int32),
        ("num_slots", c_int64),
        ("stride_slot", c_int64),
        ("stride_head", c_int64),
        ("has_null_index", c_int32),
        ("alignment_bytes", c_int32),
        ("null_index", c_int64),
        ("reserved", c_int64 * 4),
    ]


class Sized(ctypes.Structure):
    """A structure that starts with its size."""

    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args, **fields)
        self.size = ctypes.sizeof(self)


class Problem(Sized):
    _fields_ = [
        ("size", c_uint32),
        ("rule", c_int32),
        ("op", c_int32),
        ("reserved", c_int32),
        ("num_seqs", c_int64),
        ("num_tokens", c_int64),
        ("seq_len", c_int64),
        ("seq_offsets", c_void_p),
        ("seq_offsets_dtype", c_int32),
        ("heads_qk", c_int32),
        ("heads_v", c_int32),
        ("dk", c_int32),
        ("dv", c_int32),
        ("dtype", c_int32),
        ("dtype_o", c_int32),
        ("dtype_gate", c_int32),
        ("dtype_beta", c_int32),
        ("dtype_a_log", c_int32),
        ("dtype_dt_bias", c_int32),
        ("gate_form", c_int32),
        ("beta_form", c_int32),
        ("l2norm", c_int32),
        ("scale_given", c_int32),
        ("scale", c_float),
        ("lower_bound", c_float),
        ("gate_floor", c_float),
        ("layout_q", Layout),
        ("layout_k", Layout),
        ("layout_v", Layout),
        ("layout_o", Layout),
        ("layout_g", Layout),
        ("layout_beta", Layout),
        ("initial", State),
        ("final", State),
        ("initial_mask", c_int32),
        ("checkpoints", c_int32),
        ("checkpoint_every", c_int64),
        ("checkpoint", State),
        ("chunks", c_void_p),
        ("backward", c_void_p),
        ("steps", c_void_p),
    ]


class Device(Sized):
    _fields_ = [
        ("size", c_uint32),
        ("kind", c_int32),
        ("name", c_char * 32),
        ("model", c_char * 64),
        ("units", c_int32),
        ("compute_capability", c_int32),
        ("l1_bytes", c_int64),
        ("l2_bytes", c_int64),
        ("bytes_per_ns", c_int32),
        ("flops_per_ns", c_int32),
    ]


class Options(Sized):
    _fields_ = [
        ("size", c_uint32),
        ("segments", c_int32),
        ("segment_value", c_int64),
        ("backend", c_char_p),
        ("isa", c_char_p),
        ("variant", c_char_p),
        ("policy", c_char_p),
        ("device", POINTER(Device)),
        ("threads", c_int32),
        ("invariant", c_int32),
        ("carry", c_int32),
        ("carry_log_decay", c_float),
        ("columns", c_void_p),
        ("num_columns", c_int32),
        ("math", c_int32),
        ("costs", c_void_p),
        ("num_costs", c_int32),
        ("reserved", c_int32),
        ("parallel_for", c_void_p),
        ("parallel_pool", c_void_p),
    ]


class Summary(Sized):
    _fields_ = [
        ("size", c_uint32),
        ("chunk", c_int32),
        ("backend", c_char_p),
        ("isa", c_char_p),
        ("variant", c_char_p),
        ("num_segments", c_int64),
        ("max_segments", c_int64),
        ("cut_sequences", c_int64),
        ("threads", c_int32),
        ("value_tiles", c_int32),
        ("grain", c_int64),
        ("predicted_ns", c_int64),
        ("unsplit_ns", c_int64),
    ]


# The pointers of dr_tensors in order. The arguments of a call have the same order, here and in binding/arguments.h.
POINTERS = (
    "q",
    "k",
    "v",
    "g",
    "beta",
    "a_log",
    "dt_bias",
    "o",
    "initial",
    "initial_index",
    "has_initial",
    "final",
    "final_index",
    "checkpoint",
    "checkpoint_index",
    "checkpoint_offsets",
    "checkpoint_positions",
    "seq_offsets",
    "report",
)


# The pointers of dr_intermediates in order; the bit of one in dr_chunks is 1 << its index.
INTERMEDIATES = (
    "aqk",
    "inverse",
    "w",
    "u",
    "k_to_end",
    "q_from_start",
    "gate_sums",
    "v_new",
    "states",
    "summaries",
    "composed",
)


class Chunks(Sized):
    _fields_ = [
        ("size", c_uint32),
        ("chunk", c_int32),
        ("given", c_int32),
        ("wanted", c_int32),
        ("dtype", c_int32),
        ("dtype_states", c_int32),
        ("states_layout", c_int32),
        ("sums_base_2", c_int32),
    ]


class Intermediates(Sized):
    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        *((name, c_void_p) for name in INTERMEDIATES),
    ]


class Tensors(Sized):
    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("num_tokens", c_int64),
        ("num_seqs", c_int64),
        *((name, c_void_p) for name in POINTERS),
        ("intermediates", c_void_p),
        ("gradients", c_void_p),
        ("drafts", c_void_p),
    ]


# name: (result, arguments)
FUNCTIONS = {
    "dr_version": (c_int32, []),
    "dr_build_info": (c_char_p, []),
    "dr_last_error": (c_char_p, []),
    "dr_device_count": (c_int32, []),
    "dr_device_get": (c_int32, [c_int32, POINTER(Device)]),
    "dr_device_find": (c_int32, [c_char_p, POINTER(Device)]),
    "dr_plan_create": (c_int32, [POINTER(Problem), POINTER(Options), POINTER(c_void_p)]),
    "dr_plan_destroy": (None, [c_void_p]),
    "dr_plan_workspace_bytes": (c_int32, [c_void_p, POINTER(ctypes.c_size_t)]),
    "dr_plan_summarize": (c_int32, [c_void_p, POINTER(Summary)]),
    "dr_plan_describe": (c_int32, [c_void_p, c_int32, c_char_p, ctypes.c_size_t, POINTER(ctypes.c_size_t)]),
    "dr_execute": (c_int32, [c_void_p, POINTER(Tensors), c_void_p, ctypes.c_size_t, c_void_p]),
    "dr_backend_count": (c_int32, []),
    "dr_backend_name": (c_char_p, [c_int32]),
    "dr_backend_check": (c_int32, [c_int32, POINTER(Problem), POINTER(Options)]),
    "dr_isa_count": (c_int32, []),
    "dr_isa_name": (c_char_p, [c_int32]),
}
