"""libdeltarelay.so on torch tensors, as little of it as a benchmark needs: one forward call of deltarelay.h."""

import ctypes as c

import torch

RULES = {"kda": 1, "gdn": 2}
DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
GATES = {"log": 0, "linear": 1, "softplus": 2, "bounded": 3}  # forms of the contract
BETA_VALUE, BETA_LOGIT = 0, 1
INT64 = 5
STATE_ROWS, STATE_VALUE_MAJOR = 1, 1


def fields(*groups: tuple) -> list:
    """("int32", "a b c") and so on, in order."""
    kinds = {"int32": c.c_int32, "uint32": c.c_uint32, "int64": c.c_int64, "float": c.c_float, "pointer": c.c_void_p}
    return [(name, kinds.get(kind, kind)) for kind, names in groups for name in names.split()]


class Layout(c.Structure):
    _fields_ = fields(("int64", "token head sequence"), ("int32", "alignment_bytes reserved"))


class State(c.Structure):
    _fields_ = fields(
        ("int32", "use layout dtype index_dtype"),
        ("int64", "num_slots stride_slot stride_head"),
        ("int32", "has_null_index alignment_bytes"),
        ("int64", "null_index reserved1 reserved2 reserved3 reserved4"),
    )


class Problem(c.Structure):
    _fields_ = fields(
        ("uint32", "size"),
        ("int32", "rule op reserved"),
        ("int64", "num_seqs num_tokens seq_len"),
        ("pointer", "seq_offsets"),
        ("int32", "seq_offsets_dtype heads_qk heads_v dk dv dtype dtype_o dtype_gate dtype_beta"),
        ("int32", "dtype_a_log dtype_dt_bias"),
        ("int32", "gate_form beta_form l2norm scale_given"),
        ("float", "scale lower_bound gate_floor"),
        (Layout, "layout_q layout_k layout_v layout_o layout_g layout_beta"),
        (State, "initial final"),
        ("int32", "initial_mask checkpoints"),
        ("int64", "checkpoint_every"),
        (State, "checkpoint"),
        ("pointer", "chunks backward steps"),
    )


class Device(c.Structure):
    _fields_ = fields(
        ("uint32", "size"),
        ("int32", "kind"),
        (c.c_char * 32, "name"),
        (c.c_char * 64, "model"),
        ("int32", "units compute_capability"),
        ("int64", "l1_bytes l2_bytes"),
        ("int32", "bytes_per_ns flops_per_ns"),
    )


class Options(c.Structure):
    _fields_ = fields(
        ("uint32", "size"),
        ("int32", "segments"),
        ("int64", "segment_value"),
        ("pointer", "backend isa variant policy device"),
        ("int32", "threads invariant carry reserved"),
        ("pointer", "columns"),
        ("int32", "num_columns math"),
        ("pointer", "costs"),
        ("int32", "num_costs reserved2"),
        ("pointer", "parallel_for parallel_pool"),
    )


class Tensors(c.Structure):
    _fields_ = fields(
        ("uint32", "size reserved"),
        ("int64", "num_tokens num_seqs"),
        ("pointer", "q k v g beta a_log dt_bias o initial initial_index has_initial final final_index"),
        ("pointer", "checkpoint checkpoint_index checkpoint_offsets checkpoint_positions seq_offsets report"),
        ("pointer", "intermediates gradients drafts"),
    )


def make(kind):
    """A structure of the API with all defaults and its size set."""
    made = kind()
    made.size = c.sizeof(kind)
    return made


class Library:
    def __init__(self, path: str, device: bytes = b"cuda:0"):
        self.library = c.CDLL(path)
        self.library.dr_last_error.restype = c.c_char_p
        self.device = make(Device)
        self.check(self.library.dr_device_find(device, c.byref(self.device)))

    def check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self.library.dr_last_error().decode())

    def plan(
        self, rule: str, x: dict, offsets: list[int], form: str, lower_bound: float | None
    ) -> tuple[c.c_void_p, int]:
        """A plan for tensors of the shapes and types of x, and the bytes of workspace that it needs."""
        problem = make(Problem)
        host_offsets = (c.c_int64 * len(offsets))(*offsets)
        problem.rule = RULES[rule]
        problem.num_seqs, problem.num_tokens = len(offsets) - 1, x["q"].shape[0]
        problem.seq_offsets, problem.seq_offsets_dtype = c.addressof(host_offsets), INT64
        problem.heads_qk, problem.heads_v = x["q"].shape[1], x["v"].shape[1]
        problem.dk, problem.dv = x["q"].shape[2], x["v"].shape[2]
        problem.dtype, problem.dtype_o = DTYPES[x["q"].dtype], DTYPES[x["o"].dtype]
        problem.dtype_gate, problem.dtype_beta = DTYPES[x["g"].dtype], DTYPES[x["beta"].dtype]
        problem.gate_form = GATES[form]
        problem.lower_bound = lower_bound or 0.0
        problem.beta_form = BETA_LOGIT if rule == "kda" else BETA_VALUE
        problem.l2norm = 1
        for state in (problem.initial, problem.final):
            state.use, state.layout, state.dtype = STATE_ROWS, STATE_VALUE_MAJOR, DTYPES[torch.float32]
        options = make(Options)
        options.device = c.addressof(self.device)
        plan = c.c_void_p()
        self.check(self.library.dr_plan_create(c.byref(problem), c.byref(options), c.byref(plan)))
        needed = c.c_size_t()
        self.check(self.library.dr_plan_workspace_bytes(plan, c.byref(needed)))
        return plan, needed.value

    def describe(self, plan: c.c_void_p) -> str:
        needed = c.c_size_t()
        self.check(self.library.dr_plan_describe(plan, 0, None, c.c_size_t(0), c.byref(needed)))
        text = c.create_string_buffer(needed.value)
        self.check(self.library.dr_plan_describe(plan, 0, text, needed, None))
        return text.value.decode()

    def forward(self, rule: str, x: dict, offsets: list[int], form: str, lower_bound: float | None):
        """A function that runs the case on the tensors of x, writing x["o"] and x["final"] on the current stream."""
        plan, needed = self.plan(rule, x, offsets, form, lower_bound)
        workspace = torch.empty(needed + 256, dtype=torch.uint8, device="cuda")
        base = (workspace.data_ptr() + 255) // 256 * 256
        tensors = make(Tensors)
        for name in ("q", "k", "v", "g", "beta", "o", "initial", "final", "a_log", "dt_bias"):
            if name in x:
                setattr(tensors, name, x[name].data_ptr())

        def call(keep=(workspace, x)):
            stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
            size = c.c_size_t(needed)
            self.check(self.library.dr_execute(plan, c.byref(tensors), c.c_void_p(base), size, stream))
            return x["o"]

        return call
