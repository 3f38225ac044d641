/* DeltaRelay: delta-rule linear attention (KDA and GDN) that keeps the whole machine busy on one long sequence.
 *
 * The life of a call:
 *
 *     dr_problem problem;  dr_problem_init(&problem);  ...what is asked: rule, operation, sizes, types, sequences...
 *     dr_plan_create(&problem, NULL, &plan);           validates, chooses backend, segments and tiling
 *     dr_plan_workspace_bytes(plan, &bytes);           scratch that the caller owns
 *     dr_execute(plan, &tensors, workspace, bytes, NULL);   as often as wanted, on new pointers
 *     dr_plan_destroy(plan);
 *
 * Per sequence and value head, with the state S of shape DK x DV and every token t in order:
 *
 *     S <- diag(exp(g_t)) S;   r = v_t - S^T k_t;   S <- S + beta_t k_t r^T;   o_t = scale * S^T q_t
 *
 * KDA has one gate per key channel (g_t is a vector of DK), GDN one per head (g_t is a number).
 *
 * Conventions
 *   - Structures carry their size first (set by the dr_*_init functions); a field that is zero has its default. The one
 *     field without a default is the layout of a state: [DV, DK] and [DK, DV] look alike when DK == DV.
 *   - Enumerations are int32_t. Sizes are in bytes where the name says so, else in elements. Reserved fields are zero.
 *   - A caller and a library of different versions from 0.2 on understand each other. A structure that is shorter than the
 *     library's (an older header) is accepted, and the missing fields are zero. A longer one (a newer header) is accepted
 *     while the bytes beyond are zero. Structures of 0.1 are refused. Structures that the library fills need their size set
 *     too; it fills as much of them as there is.
 *   - Every function that can fail returns a dr_status; dr_last_error() then says, for the calling thread, which argument
 *     was wrong, what was expected and what was found. A call that fails has written nothing.
 *   - The library prints nothing, changes no global state that affects results and reads no environment variable that does.
 *   - Plans for a CPU share a pool of threads, made when first needed (dr_options.parallel_for brings the caller's own). Its
 *     threads run on any CPU of the process, wherever their first caller was pinned. They end with the library: it can be
 *     unloaded once its plans are destroyed and no call is under way. A forked child gets a pool of its own. A process may exit
 *     while other threads execute.
 */
#ifndef DELTARELAY_DELTARELAY_H_
#define DELTARELAY_DELTARELAY_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define DR_API __declspec(dllimport)
#elif defined(__GNUC__)
#define DR_API __attribute__((visibility("default")))
#else
#define DR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DR_VERSION_MAJOR 0
#define DR_VERSION_MINOR 2
#define DR_VERSION_PATCH 0
#define DR_VERSION (DR_VERSION_MAJOR * 10000 + DR_VERSION_MINOR * 100 + DR_VERSION_PATCH)

/* ---- status ---------------------------------------------------------------------------------------------------- */

typedef int32_t dr_status;
enum {
  DR_SUCCESS = 0,
  DR_INVALID = 1,       /* the request contradicts itself or the contract: no backend could serve it */
  DR_UNSUPPORTED = 2,   /* the request is valid, but the backend that was asked for (or every one) declines it */
  DR_OUT_OF_MEMORY = 3, /* host memory for a plan could not be had */
  DR_DEVICE_ERROR = 4,  /* the device reported an error */
  DR_INTERNAL = 5       /* a defect of the library */
};

/* A short name such as "invalid". Never NULL. */
DR_API const char* dr_status_string(dr_status status);
/* The message of the last failure on this thread: argument, expected, found. Empty after a success. Never NULL. */
DR_API const char* dr_last_error(void);
/* Version of the library that is loaded, as DR_VERSION is of the header. */
DR_API int32_t dr_version(void);
/* Version, compiler, instruction sets and GPU architectures that were built in. Never NULL. */
DR_API const char* dr_build_info(void);

/* ---- what is asked --------------------------------------------------------------------------------------------- */

enum {             /* dr_problem.rule: which recurrence */
       DR_KDA = 1, /* a gate per key channel */
       DR_GDN = 2  /* a gate per head */
};

/* dr_problem.op: what to do with it. This version of the library runs DR_FORWARD; it answers the others with
 * DR_UNSUPPORTED. Their numbers are settled here, so that they never change. */
enum {
  DR_FORWARD = 0,     /* outputs and final states */
  DR_BACKWARD = 1,    /* gradients */
  DR_CHUNK_LOCAL = 2, /* stage: what needs no state */
  DR_STATE_PASS = 3,  /* stage: the state at the start of every chunk */
  DR_OUTPUTS = 4,     /* stage: outputs from those states */
  DR_SUMMARY = 5,     /* stage: (M, B) of segments */
  DR_CARRY = 6,       /* stage: the ordered fold of summaries */
  DR_STEP = 7,        /* decode: a few tokens of every sequence */
  DR_COMMIT = 8       /* decode: replay of accepted tokens into the states */
};

enum { /* element types; 0 is a default that depends on the field */
       DR_FP32 = 1,
       DR_BF16 = 2,
       DR_FP16 = 3,
       DR_INT32 = 4,
       DR_INT64 = 5
};

/* Gates outside these ranges (a log-decay above 0, a decay outside [0, 1], NaN) are not looked for. They make the results of
 * their sequence and value head (o, final state, checkpoints) unspecified, inf and NaN included, from the 64-token chunk on
 * that they lie in. Nothing else is touched: what lies before it, other heads and other sequences keep their bits, and nothing is
 * read or written out of bounds. The same holds of other inputs that are NaN or inf, for the value heads that read them. */
enum {                           /* dr_problem.gate_form: how g is to be read; natural logarithm throughout */
       DR_GATE_LOG = 0,          /* g is the log-decay, <= 0; -inf forgets exactly */
       DR_GATE_LINEAR = 1,       /* g is the decay in [0, 1]; 0 forgets exactly */
       DR_GATE_RAW_SOFTPLUS = 2, /* log-decay = -exp(a_log) * softplus(g + dt_bias) */
       DR_GATE_RAW_BOUNDED = 3   /* log-decay = lower_bound * sigmoid(exp(a_log) * (g + dt_bias)) */
};

enum {                         /* dr_problem.beta_form */
       DR_BETA_VALUE = 0,      /* the write strength itself */
       DR_BETA_LOGIT = 1,      /* sigmoid(beta) */
       DR_BETA_TWICE_LOGIT = 2 /* 2 * sigmoid(beta): negative eigenvalues */
};

enum {                           /* dr_state.layout; 0 is invalid on purpose */
       DR_STATE_VALUE_MAJOR = 1, /* [slot, HV, DV, DK]: DK innermost, what serving engines keep */
       DR_STATE_KEY_MAJOR = 2    /* [slot, HV, DK, DV]: DV innermost */
};

enum { /* dr_state.use */
       DR_STATE_NONE = 0,
       DR_STATE_ROWS = 1, /* row n belongs to sequence n (checkpoints: row r to checkpoint r) */
       DR_STATE_SLOTS = 2 /* an index array names the slot; negative or null_index: read zero, write nothing */
};

enum { /* dr_problem.checkpoints: states inside a sequence, a side product that never moves the bits of the chain */
       DR_CHECKPOINTS_NONE = 0,
       DR_CHECKPOINTS_EVERY = 1, /* after n, 2n, ... tokens of each sequence (n = checkpoint_every) */
       DR_CHECKPOINTS_LIST = 2,  /* after the token counts listed for each sequence */
       DR_CHECKPOINTS_CHUNKS = 3 /* at the START of each 64-token chunk (what FLA calls h) */
};

/* Where the elements of one tensor lie. Strides are in elements; 0 means contiguous in the order of the shape, outside the
 * strides that are given. The innermost (feature) stride is 1. No element may have two indices. The stride of an axis with
 * one index is not used. */
typedef struct dr_layout {
  int64_t token;
  int64_t head;
  int64_t sequence; /* batched problems only: distance between sequences */
  int32_t
      alignment_bytes; /* promised of the pointer, a power of two. 0: 16 bytes; of beta and of the gate of GDN, which
                              are often slices of a projection, the size of an element */
  int32_t reserved;
} dr_layout;

/* A pool of states. The two inner axes are contiguous. */
typedef struct dr_state {
  int32_t use;             /* DR_STATE_NONE, _ROWS or _SLOTS */
  int32_t layout;          /* required when used */
  int32_t dtype;           /* default DR_FP32; arithmetic is fp32 inside whatever is stored */
  int32_t index_dtype;     /* of the index array: DR_INT32 (default) or DR_INT64 */
  int64_t num_slots;       /* states in the pool; default: one per sequence (or per checkpoint) */
  int64_t stride_slot;     /* elements; default HV * DK * DV */
  int64_t stride_head;     /* elements; default DK * DV */
  int32_t has_null_index;  /* nonzero: null_index below is a null slot too */
  int32_t alignment_bytes; /* promised of the pool's pointer, a power of two; 0: 16 bytes */
  int64_t null_index;
  int64_t reserved[4];
} dr_state;

/* What an operation needs beyond the forward hangs on structures of its own. They are declared here and defined by the
 * version that runs the operation; until then their pointers are NULL. docs/contract.md has their design. */
typedef struct dr_chunks dr_chunks;               /* stages: chunk length, wanted intermediates, their types */
typedef struct dr_backward dr_backward;           /* wanted gradients, their types and layouts, tape */
typedef struct dr_steps dr_steps;                 /* decode: most tokens a call, drafts, journal */
typedef struct dr_intermediates dr_intermediates; /* tensors of the stages */
typedef struct dr_gradients dr_gradients;         /* tensors of the backward */
typedef struct dr_drafts dr_drafts;               /* tensors of decode steps */

typedef struct dr_problem {
  uint32_t size; /* sizeof(dr_problem) */
  int32_t rule;  /* DR_KDA or DR_GDN */
  int32_t op;    /* DR_FORWARD */
  int32_t reserved;

  /* Sequences. Packed: tensors have num_tokens rows, sequence n owns rows [seq_offsets[n], seq_offsets[n+1]); offsets start
   * at 0, never decrease and end at or before num_tokens; rows after the last offset give zero outputs. seq_offsets is read
   * during dr_plan_create only. When it is NULL (and seq_len is 0) the lengths are known only to dr_execute, which then
   * needs dr_tensors.seq_offsets; num_tokens and num_seqs are upper bounds that fix workspace and tiling, and
   * dr_tensors.num_tokens and num_seqs say how many rows and sequences a call really has.
   * Batched: seq_len > 0; tensors are [num_seqs, seq_len, ...], one sequence a row; num_tokens is 0 or num_seqs * seq_len.
   * Lengths 0 and 1 are legal. */
  int64_t num_seqs; /* 1 to 65,536: the bound, with that of heads, lets every call be planned within milliseconds */
  int64_t num_tokens;
  int64_t seq_len;
  const void* seq_offsets;   /* host memory, num_seqs + 1 entries */
  int32_t seq_offsets_dtype; /* DR_INT32 (default) or DR_INT64; also of dr_tensors.seq_offsets */

  int32_t heads_qk; /* HQK, 1 to 65,536 */
  int32_t heads_v;  /* HV, 1 to 65,536, a multiple of HQK: value head h reads query/key head h / (HV / HQK) */
  int32_t dk;       /* key width, 1..256 */
  int32_t dv;       /* value width, 1..512 */

  int32_t dtype;         /* of q, k, v; default DR_FP32 */
  int32_t dtype_o;       /* default: dtype */
  int32_t dtype_gate;    /* default: dtype */
  int32_t dtype_beta;    /* default: dtype */
  int32_t dtype_a_log;   /* default DR_FP32 */
  int32_t dtype_dt_bias; /* default DR_FP32 */

  int32_t gate_form;
  int32_t beta_form;
  int32_t l2norm;      /* nonzero: q and k are scaled by rsqrt(sum of squares + 1e-6) first */
  int32_t scale_given; /* zero: scale is DK^-1/2 */
  float scale;
  float lower_bound; /* raw bounded gate: finite, < 0 */
  float gate_floor;  /* log and linear gates: a promise that log-decays are >= this (< 0); lower ones are raised to it.
                        0: none */

  dr_layout layout_q, layout_k; /* [T, HQK, DK] */
  dr_layout layout_v, layout_o; /* [T, HV, DV] */
  dr_layout layout_g;           /* [T, HV, DK] (KDA) or [T, HV] (GDN) */
  dr_layout layout_beta;        /* [T, HV] */

  dr_state initial;
  dr_state final;       /* may be the same memory as initial, slot for slot */
  int32_t initial_mask; /* nonzero: dr_tensors.has_initial tells for each sequence whether its initial state counts */

  int32_t checkpoints;
  int64_t checkpoint_every; /* DR_CHECKPOINTS_EVERY: a multiple of 16 */
  dr_state checkpoint; /* rows are in sequence order: EVERY has floor(len / n) for a sequence, CHUNKS ceil(len / 64),
                               LIST what dr_tensors.checkpoint_offsets says */

  const dr_chunks* chunks; /* NULL, as are the next two */
  const dr_backward* backward;
  const dr_steps* steps;
} dr_problem;

/* The init functions zero a structure and state its size. They are compiled into the caller, who alone knows how large its
 * structure is. */
static inline void dr_problem_init(dr_problem* problem) {
  memset(problem, 0, sizeof *problem);
  problem->size = (uint32_t)sizeof *problem;
}

/* ---- devices: facts as data, so that a plan for an absent device can be made and read --------------------------- */

enum { DR_DEVICE_CPU = 1, DR_DEVICE_CUDA = 2 };

typedef struct dr_device {
  uint32_t size;
  int32_t kind;               /* DR_DEVICE_CPU or DR_DEVICE_CUDA */
  char name[32];              /* "cpu"; "h200", ...: a model; "cuda:0", ...: a GPU of this machine */
  char model[64];             /* as its maker calls it; "": not known */
  int32_t units;              /* threads of a CPU, multiprocessors of a GPU; 1 to 65,536 */
  int32_t compute_capability; /* 90 for 9.0; 0 on a CPU */
  int64_t l1_bytes;           /* per unit: L1 data cache, or shared memory */
  int64_t l2_bytes;
  int32_t bytes_per_ns; /* memory bandwidth in GB/s; 0: no memory term */
  int32_t flops_per_ns; /* of a CPU: fp32 GFLOP/s of one unit; 0: not known */
} dr_device;

static inline void dr_device_init(dr_device* device) {
  memset(device, 0, sizeof *device);
  device->size = (uint32_t)sizeof *device;
}

/* Known devices: 0 is this machine's CPU, then a table of GPU models, then the GPUs that are here, named "cuda:0", "cuda:1", ...
 * (none where there is no driver). dr_device_find also takes "cuda", the calling thread's current one.
 *
 * Units of this machine's CPU are what the process may use, whichever thread asks: the CPUs of its main thread's affinity, at most
 * what the quota of its cgroups (version 1 or 2) pays for, rounded up. The affinity is asked by each of these calls and for each
 * plan without dr_options.device, the quota once. A host that pins its main thread, or that wants the same plans wherever it runs
 * (with dr_options.invariant the same bits: the grain goes by the units), states facts of its own. */
DR_API int32_t dr_device_count(void);
DR_API dr_status dr_device_get(int32_t index, dr_device* device);
DR_API dr_status dr_device_find(const char* name, dr_device* device);

/* What the stages of one variant of a backend cost one unit of a device, at DK = DV = 128, for one rule and operation. The
 * planner works with these numbers, in whole nanoseconds. */
typedef struct dr_costs {
  uint32_t size;
  int32_t rule;
  int32_t op;
  int32_t measured;           /* nonzero: on a device of this model; else estimated from measurements on another */
  char backend[24];           /* "cpu", "cuda-sm90", ... */
  char variant[24];           /* "" where the backend has one */
  char measured_on[40];       /* the model on which the numbers were taken */
  int32_t chunk;              /* tokens a chunk */
  int32_t emit_ns;            /* per chunk and head */
  int32_t summarize_ns;       /* per chunk and head, M and B */
  int32_t local_ns;           /* part of emit_ns that is repeated when value columns are spread over units */
  int32_t summarize_local_ns; /* the same of summarize_ns */
  int32_t carry_ns;           /* latency of one fold */
  int32_t carry_unit_ns;      /* one unit's time for one fold of one head */
  int32_t split_ns;           /* extra launches and barriers of a split plan */
  int32_t item_ns;            /* start-up of one work item */
  int32_t emit_bytes;         /* memory traffic per chunk and head */
  int32_t summarize_bytes;
  int32_t prepare_ns; /* per chunk and head, of a step before the phases; 0: part of emit and summarize */
} dr_costs;

static inline void dr_costs_init(dr_costs* costs) {
  memset(costs, 0, sizeof *costs);
  costs->size = (uint32_t)sizeof *costs;
}

/* The costs that plans for this device are made with. Those of the cpu backend were measured on an Arm Neoverse-V1; for another
 * model they are scaled by flops_per_ns where that is known, which it is if the caller states it (`deltarelay calibrate` measures
 * it, and costs). `variant` NULL or "": of a backend that has one. A caller who knows
 * better passes its own by dr_options.costs. */
DR_API dr_status dr_device_costs(const dr_device* device, const char* backend, const char* variant, int32_t rule,
                                 int32_t op, dr_costs* costs);

/* ---- how it is to be done -------------------------------------------------------------------------------------- */

enum {                        /* dr_options.segments */
       DR_SEGMENTS_AUTO = 0,  /* the planner cuts where its model gains */
       DR_SEGMENTS_OFF = 1,   /* every sequence whole */
       DR_SEGMENTS_COUNT = 2, /* segment_value segments in every sequence that has so many chunks; others stay whole,
                                 all of them where none has */
       DR_SEGMENTS_LENGTH = 3 /* segments of segment_value tokens, a multiple of the chunk */
};

/* Truncated: a segment's transition whose norm is known to be at most e^carry_log_decay may be taken as 0. The state behind
 * it is then off by no more than that part of the state ahead of it. Needs problem.l2norm and a sigmoid form of beta, with
 * which no token makes a state grow. Whether anything is dropped depends on the values and on where the plan cuts; backends
 * that never drop (cpu, reference) take it as exact. */
enum { /* dr_options.carry */
       DR_CARRY_EXACT = 0,
       DR_CARRY_TRUNCATED = 1
};

enum {                      /* dr_options.math: what products may round to */
       DR_MATH_DEFAULT = 0, /* within the tolerances of docs/numerics.md */
       DR_MATH_TF32 = 1     /* cuda-sm80, fp32 data: one product of 11 bits a factor instead of three. Less exact */
};

/* Runs body(context, i) for every i in [0, count), on any threads, and returns when all are done. */
typedef void (*dr_parallel_body)(void* context, int64_t i);
typedef void (*dr_parallel_for)(void* pool, int64_t count, dr_parallel_body body, void* context);

/* A plan for a device that is not here can be read, not executed. A "cuda:N" is here if its units and capability are those of
 * the GPU; what it costs is the caller's to say. A CPU is here whatever its facts: they decide how work is cut, and on how many
 * threads it runs (units, at most 4096) where `threads` is 0. */
typedef struct dr_options {
  uint32_t size;
  int32_t segments;
  int64_t segment_value;
  const char* backend; /* NULL: the first that accepts */
  const char* isa;     /* cpu: an instruction set by name; NULL: the best one that this machine has */
  const char* variant; /* a backend's way to do it: "fused" or "prepared" (cuda-sm90); NULL: the fastest by the model */
  const char* policy;  /* NULL or "deltarelay"; or how another system would cut: "fla", "cula-sm100", ... */
  const dr_device* device; /* NULL: this machine's CPU, or its current GPU when `backend` is one for CUDA */
  int32_t threads;         /* 0: as many as the device has units */
  int32_t invariant;       /* nonzero: output bits of a sequence do not depend on the rest of the batch */
  int32_t carry;
  float carry_log_decay;  /* DR_CARRY_TRUNCATED: natural logarithm, -80 to below 0; 0: -16. Else 0 */
  const int32_t* columns; /* reference backend: only these value columns are computed, others are left as they are */
  int32_t num_columns;
  int32_t math;
  const dr_costs* costs; /* own costs, which replace the library's for their backend, variant, rule and operation */
  int32_t num_costs;     /* entries, costs[0].size bytes apart */
  int32_t reserved;
  dr_parallel_for parallel_for; /* NULL: a pool of the library's own, made when first needed */
  void* parallel_pool;
} dr_options;

static inline void dr_options_init(dr_options* options) {
  memset(options, 0, sizeof *options);
  options->size = (uint32_t)sizeof *options;
}

/* ---- plans ----------------------------------------------------------------------------------------------------- */

/* Immutable; may be shared between threads; keeps no pointer into the problem or the options but parallel_pool. */
typedef struct dr_plan dr_plan;

/* A problem within the limits of its fields is planned within 50 ms on a core of a server, or refused. Refused for size (DR_UNSUPPORTED) are
 * more than 2^30 chunks, forced cuts into more than 262,144 segments beyond the first of each sequence, and sizes and device
 * facts whose product the cost model cannot hold. */
DR_API dr_status dr_plan_create(const dr_problem* problem, const dr_options* options, dr_plan** plan);
DR_API void dr_plan_destroy(dr_plan* plan); /* NULL is fine */
DR_API dr_status dr_plan_workspace_bytes(const dr_plan* plan, size_t* bytes);

typedef struct dr_plan_summary {
  uint32_t size;
  int32_t chunk;         /* tokens a chunk */
  const char* backend;   /* lives as long as the library */
  const char* isa;       /* instruction set of the cpu backend, else "" */
  const char* variant;   /* where the backend has several, else "" */
  int64_t num_segments;  /* of all sequences; equals the number of non-empty sequences when nothing is cut */
  int64_t max_segments;  /* of one sequence */
  int64_t cut_sequences; /* sequences with more than one segment */
  int32_t threads;
  int32_t value_tiles;  /* work items one head's value columns are spread over */
  int64_t grain;        /* invariant mode: chunks between absolute cuts; 0: not invariant; -1: infinite */
  int64_t predicted_ns; /* by the cost model */
  int64_t unsplit_ns;   /* by the same model, nothing cut */
} dr_plan_summary;

static inline void dr_plan_summary_init(dr_plan_summary* summary) {
  memset(summary, 0, sizeof *summary);
  summary->size = (uint32_t)sizeof *summary;
}
DR_API dr_status dr_plan_summarize(const dr_plan* plan, dr_plan_summary* summary);

enum { /* dr_plan_describe format */
       DR_DESCRIBE_TEXT =
           0, /* words: what was chosen, what the rejected candidates would have cost, why others declined */
       /* Everything the planner decided, with the modelled schedule beside the unsplit one. Lists of more than 20,000 entries
        * are left out: "lengths_omitted", "table_omitted" and "schedule_omitted" then say how long they are. */
       DR_DESCRIBE_JSON = 1,
       DR_DESCRIBE_SIGNATURE = 2 /* one line: what fixes the bits of the result */
};

/* Writes at most `capacity` bytes including the final NUL; `needed` (may be NULL) receives the full size with NUL. A text
 * that does not fit is cut and the call still succeeds, so a first call may pass (NULL, 0). */
DR_API dr_status dr_plan_describe(const dr_plan* plan, int32_t format, char* text, size_t capacity, size_t* needed);

/* ---- execution ------------------------------------------------------------------------------------------------- */

/* Pointers of one execution, in the shapes, strides and types that the problem states. All of them, and the workspace, are in
 * host memory for a CPU plan and in memory of its GPU for a CUDA plan, index arrays, lists and the report included; values in
 * host memory are checked, on a GPU they are brought into range and reported. What the problem has no use for is NULL, but for
 * a_log and dt_bias, which are then not looked at. A tensor without elements may be NULL.
 *
 * What a call writes (o, final states, checkpoints, report, workspace) is memory of nothing else that it touches; a call that
 * breaks this is refused. Elements count, not ranges of addresses, so tensors may be views of one row, o among them. A pool
 * with slots counts whole, a workspace as far as dr_plan_workspace_bytes. Strides that have little in common (a greatest common
 * divisor of a few bytes) cannot always be told apart in good time; such tensors are accepted.
 * Pools may share memory slot by slot: no two rows write the same slot, no checkpoint goes where a final state goes, and no
 * sequence reads a slot that another one writes. It may write where it reads: final states in place of initial ones. In host
 * memory a call that breaks this is refused (pools with different strides: up to 65,536 pairs of rows are compared); on a GPU
 * the report says so (pools with different strides: it does not).
 *
 * Counts. T and N below are num_tokens and num_seqs of this call, or the problem's where they are 0. Where lengths come at
 * execution a call may have fewer of both than the problem's bounds, and pays for what it has: arrays have T rows and N
 * entries, and nothing beyond is read or written. Of o, rows of sequences are written, rows from the last offset to T are
 * set to zero, and rows from T on are left alone. A captured CUDA graph keeps the counts of its capture: replays with fewer
 * tokens or sequences say so by the offsets on the device, with empty sequences at the end.
 *
 * Continuing a prefix from its final state gives the bits of the whole sequence only where the prefix ends at a multiple of
 * the plan's chunk (of the grain in the invariant mode); elsewhere results agree within rounding. */
typedef struct dr_tensors {
  uint32_t size;
  uint32_t reserved;
  int64_t num_tokens;  /* T: at most problem.num_tokens where lengths come at execution, else that; 0: that many */
  int64_t num_seqs;    /* N: likewise */
  const void* q;       /* [T, HQK, DK] */
  const void* k;       /* [T, HQK, DK] */
  const void* v;       /* [T, HV, DV] */
  const void* g;       /* [T, HV, DK] or [T, HV] */
  const void* beta;    /* [T, HV] */
  const void* a_log;   /* [HV]; raw gates; NULL in the bounded form: factor 1 */
  const void* dt_bias; /* [HV, DK] (KDA) or [HV] (GDN); raw gates; NULL: no bias */
  void* o;             /* [T, HV, DV] */

  const void* initial;        /* state pool */
  const void* initial_index;  /* [N], with DR_STATE_SLOTS */
  const uint8_t* has_initial; /* [N], with initial_mask */
  void* final;
  const void* final_index; /* [N], with DR_STATE_SLOTS */
  void* checkpoint;
  const void* checkpoint_index;      /* one per checkpoint row, with DR_STATE_SLOTS */
  const int32_t* checkpoint_offsets; /* LIST: [N + 1], rows of sequence n are [offsets[n], offsets[n+1]) */
  const int32_t*
      checkpoint_positions; /* LIST: token counts, increasing in a sequence, multiples of 16, within its length */

  const void* seq_offsets; /* [N + 1], only when the problem had none */
  uint32_t* report;        /* may be NULL; set to 0, or to DR_REPORT_* bits: device-side values had to be clamped, a
                              truncated carry dropped a transition that was not 0, or slots alias as said above, so that
                              some states are undefined */

  const dr_intermediates* intermediates; /* NULL, as are the next two */
  const dr_gradients* gradients;
  const dr_drafts* drafts;
} dr_tensors;

enum {
  DR_REPORT_OFFSETS = 1,
  DR_REPORT_SLOTS = 2,
  DR_REPORT_CHECKPOINTS = 4,
  DR_REPORT_DROPPED = 8,
  DR_REPORT_ALIASES = 16
};

static inline void dr_tensors_init(dr_tensors* tensors) {
  memset(tensors, 0, sizeof *tensors);
  tensors->size = (uint32_t)sizeof *tensors;
}

/* Runs the plan. Never allocates on behalf of the result, never keeps a pointer. `workspace` is 256-byte aligned, at least
 * dr_plan_workspace_bytes, contents undefined before and after; one workspace per concurrent execution. `stream` is a
 * cudaStream_t for GPU plans (the call then returns before the work is done) and must be NULL for CPU plans. */
DR_API dr_status dr_execute(const dr_plan* plan, const dr_tensors* tensors, void* workspace, size_t workspace_bytes,
                            void* stream);

/* ---- backends -------------------------------------------------------------------------------------------------- */

/* In order of preference; "reference", which accepts every valid problem (but computes every sequence whole), is last. */
DR_API int32_t dr_backend_count(void);
DR_API const char* dr_backend_name(int32_t index); /* NULL when out of range */
/* Would this backend serve the problem? DR_SUCCESS, DR_UNSUPPORTED (dr_last_error has the reason) or DR_INVALID. */
DR_API dr_status dr_backend_check(int32_t index, const dr_problem* problem, const dr_options* options);
/* Instruction sets of the cpu backend that this machine has, best first. */
DR_API int32_t dr_isa_count(void);
DR_API const char* dr_isa_name(int32_t index); /* NULL when out of range */

#ifdef __cplusplus
}
#endif
#endif /* DELTARELAY_DELTARELAY_H_ */
