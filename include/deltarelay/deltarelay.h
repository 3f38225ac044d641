/* DeltaRelay: delta-rule linear attention (KDA and GDN). It keeps the whole machine busy on one long sequence.
 *
 * The life of a call:
 *
 *     dr_problem problem;                              what to compute: rule, sizes, types, sequences
 *     dr_problem_init(&problem);                       zero = default; then fill in the fields
 *     dr_plan_create(&problem, NULL, &plan);           validate; choose backend, segments and tiling
 *     dr_plan_workspace_bytes(plan, &bytes);           size of the scratch memory, which the caller owns
 *     dr_execute(plan, &tensors, workspace, bytes, NULL);   repeat with new pointers as often as needed
 *     dr_plan_destroy(plan);
 *
 * For each sequence and value head, with a state S of shape DK x DV, and for every token t in order:
 *
 *     S <- diag(exp(g_t)) S;   r = v_t - S^T k_t;   S <- S + beta_t k_t r^T;   o_t = scale * S^T q_t
 *
 * KDA has one gate per key channel (g_t is a vector of DK numbers). GDN has one gate per head (g_t is one number).
 *
 * Conventions
 *   - The first field of a structure is its size; the dr_*_init functions set it. A field that is zero has its default.
 *     Only the layout of a state has no default, because [DV, DK] and [DK, DV] look alike when DK == DV.
 *   - Enumerations are int32_t. A size is in bytes if its name says so, else in elements. Reserved fields must be zero.
 *   - From version 0.2 on, a caller and a library of different versions work together. The library accepts a structure
 *     that is shorter than its own (an older header) and takes the missing fields as zero. It accepts a longer one
 *     (a newer header) if the extra bytes are zero. It refuses structures of version 0.1. Structures that the library
 *     fills need their size set too; the library fills as many bytes as that size allows.
 *   - Every function that can fail returns a dr_status. dr_last_error() then names the argument, what was expected and
 *     what was found. The message belongs to the calling thread. A call that fails has written nothing.
 *   - The library prints nothing. It has no global setting and reads no environment variable that affects results.
 *   - Plans for a CPU share one pool of threads. The library creates the pool at first use, unless the caller supplies
 *     its own (dr_options.parallel_for). The threads may run on every CPU of the process, even if the thread that
 *     created them is pinned. They are called "deltarelay" and take no signals but those of their own faults. Without
 *     memory for a thread the calling one does its share. They end when the library is unloaded. Unload the library
 *     only after its plans are destroyed and no call is running. A forked child creates a new pool. A process may exit
 *     while other threads execute plans.
 *   - The library computes in the floating-point environment in which programs start: rounding to nearest, no traps. A
 *     thread that calls with another one has it back when the call returns, exception flags included.
 */
#ifndef DELTARELAY_DELTARELAY_H_
#define DELTARELAY_DELTARELAY_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "deltarelay/stages.h"

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

/* Result of a call. */
typedef int32_t dr_status;
enum {
  DR_SUCCESS = 0,
  DR_INVALID = 1,       /* the request contradicts itself or breaks a rule of this header; no backend can serve it */
  DR_UNSUPPORTED = 2,   /* the request is valid, but the requested backend (or every backend) declines it */
  DR_OUT_OF_MEMORY = 3, /* an allocation of host memory failed */
  DR_DEVICE_ERROR = 4,  /* the device reported an error */
  DR_INTERNAL = 5       /* a defect of the library; please report it */
};

/* Returns a short name such as "invalid". Never NULL; the text lives as long as the library. */
DR_API const char* dr_status_string(dr_status status);

/* Returns the message of the last call on this thread if that call failed, else "". The message names the argument,
 * what was expected and what was found. Never NULL. The text belongs to the library and changes with the thread's next
 * call that returns a dr_status. */
DR_API const char* dr_last_error(void);

/* Returns the version of the loaded library, encoded like DR_VERSION, which is the version of this header. */
DR_API int32_t dr_version(void);

/* Returns one line: version, compiler, instruction sets that this machine can use, GPU architectures of the build.
 * Never NULL; the text lives as long as the library. */
DR_API const char* dr_build_info(void);

/* ---- problem: what to compute ---------------------------------------------------------------------------------- */

/* dr_problem.rule: which recurrence. */
enum {
  DR_KDA = 1, /* one gate per key channel */
  DR_GDN = 2  /* one gate per head */
};

/* dr_problem.op: which operation. The stages are the steps of the forward, for callers that keep what lies between
 * them; dr_chunks describes them. This version of the library answers DR_BACKWARD, DR_STEP and DR_COMMIT with
 * DR_UNSUPPORTED. Their numbers are reserved and will not change. */
enum {
  DR_FORWARD = 0,     /* outputs and final states */
  DR_BACKWARD = 1,    /* gradients */
  DR_CHUNK_LOCAL = 2, /* stage: everything of a chunk that needs no state */
  DR_STATE_PASS = 3,  /* stage: the state at the start of every chunk, and the final states */
  DR_OUTPUTS = 4,     /* stage: o, from the results of the two stages before */
  DR_SUMMARY = 5,     /* stage: the transition (M, B) of every sequence */
  DR_CARRY = 6,       /* stage: the ordered fold of transitions */
  DR_STEP = 7,        /* decode: a few tokens of every sequence */
  DR_COMMIT = 8       /* decode: replay of accepted tokens into the states */
};

/* Element types. In a dtype field, 0 means the default of that field. */
enum { DR_FP32 = 1, DR_BF16 = 2, DR_FP16 = 3, DR_INT32 = 4, DR_INT64 = 5 };

/* dr_problem.gate_form: how the library reads g. All logarithms are natural.
 *
 * The library does not check gate values. A log-decay above 0, a decay outside [0, 1] or a NaN makes results
 * unspecified (inf and NaN included) for its sequence and value head: o, checkpoints and the final state, from the
 * 64-token chunk that contains the gate on. Earlier chunks, other heads and other sequences keep their bits, and no
 * memory outside the tensors is read or written. The same holds for a NaN or inf in any other input, for the value
 * heads that read it. */
enum {
  DR_GATE_LOG = 0,          /* g is the log-decay, <= 0; -inf forgets exactly */
  DR_GATE_LINEAR = 1,       /* g is the decay in [0, 1]; 0 forgets exactly */
  DR_GATE_RAW_SOFTPLUS = 2, /* log-decay = -exp(a_log) * softplus(g + dt_bias) */
  DR_GATE_RAW_BOUNDED = 3   /* log-decay = lower_bound * sigmoid(exp(a_log) * (g + dt_bias)) */
};

/* dr_problem.beta_form: how the library reads beta. */
enum {
  DR_BETA_VALUE = 0,      /* beta is the write strength */
  DR_BETA_LOGIT = 1,      /* write strength = sigmoid(beta) */
  DR_BETA_TWICE_LOGIT = 2 /* write strength = 2 * sigmoid(beta); allows negative eigenvalues of I - beta k k^T */
};

/* dr_state.layout: order of the axes of a state. 0 is invalid on purpose: the layout has no default. */
enum {
  DR_STATE_VALUE_MAJOR = 1, /* [slot, HV, DV, DK]: DK innermost, as serving engines keep it */
  DR_STATE_KEY_MAJOR = 2    /* [slot, HV, DK, DV]: DV innermost */
};

/* dr_state.use: how sequences and checkpoints find their state in the pool. */
enum {
  DR_STATE_NONE = 0, /* no states of this kind */
  DR_STATE_ROWS = 1, /* row n belongs to sequence n; for checkpoints, row r belongs to checkpoint r */
  DR_STATE_SLOTS = 2 /* an index array names the slot; a negative index or null_index reads zero and writes nothing */
};

/* dr_problem.checkpoints: which states inside a sequence are written. Checkpoints never change the bits of o or of the
 * final states. */
enum {
  DR_CHECKPOINTS_NONE = 0,  /* no checkpoints */
  DR_CHECKPOINTS_EVERY = 1, /* after n, 2n, ... tokens of each sequence (n = checkpoint_every) */
  DR_CHECKPOINTS_LIST = 2,  /* after the token counts listed for each sequence */
  DR_CHECKPOINTS_CHUNKS = 3 /* at the START of each 64-token chunk (FLA calls these states h) */
};

/* Where the elements of one tensor lie. Strides are in elements. A stride of 0 means contiguous: the axis steps over
 * everything inside it, given strides included. The innermost (feature) stride is always 1. Two indices must never name
 * the same element. The stride of an axis with one index is not used. */
typedef struct dr_layout {
  int64_t token;           /* from one token to the next */
  int64_t head;            /* from one head to the next */
  int64_t sequence;        /* from one sequence to the next; batched problems only */
  int32_t alignment_bytes; /* the caller promises that the pointer is a multiple of this power of two. 0 means 16; for
                              beta and the GDN gate, often slices of a projection, 0 means the size of an element */
  int32_t reserved;        /* zero */
} dr_layout;

/* A pool of states, which the caller owns. The two inner axes are contiguous. */
typedef struct dr_state {
  int32_t use;             /* DR_STATE_NONE, _ROWS or _SLOTS */
  int32_t layout;          /* DR_STATE_VALUE_MAJOR or _KEY_MAJOR; required unless use is DR_STATE_NONE */
  int32_t dtype;           /* stored type, default DR_FP32; arithmetic is fp32 for every stored type */
  int32_t index_dtype;     /* type of the index array: DR_INT32 (default) or DR_INT64 */
  int64_t num_slots;       /* states in the pool; default: one per sequence (or per checkpoint) */
  int64_t stride_slot;     /* elements; default HV * DK * DV */
  int64_t stride_head;     /* elements; default DK * DV */
  int32_t has_null_index;  /* nonzero: null_index names a null slot too */
  int32_t alignment_bytes; /* the caller promises that the pool's pointer is a multiple of it, a power of two; 0: 16 */
  int64_t null_index;      /* used when has_null_index is nonzero, else 0 */
  int64_t reserved[4];     /* zero */
} dr_state;

/* Structures of the operations that this version does not run. It only declares them: the version that runs an
 * operation will define its structure. Until then their pointers must be NULL. docs/contract.md describes the design.
 * */
typedef struct dr_backward dr_backward;   /* requested gradients, their types and layouts, tape */
typedef struct dr_steps dr_steps;         /* decode: largest token count of a call, drafts, journal */
typedef struct dr_gradients dr_gradients; /* tensors of the backward */
typedef struct dr_drafts dr_drafts;       /* tensors of decode steps */

/* What to compute, without pointers to tensors. Call dr_problem_init, then set the fields that differ from their
 * default. The caller owns the structure; dr_plan_create copies what it needs.
 *
 * Packed sequences: the tensors have num_tokens rows, and sequence n owns rows [seq_offsets[n], seq_offsets[n+1]).
 * Offsets start at 0, never decrease and end at or before num_tokens. Rows after the last offset get zero outputs.
 * Only dr_plan_create reads seq_offsets.
 *
 * Lengths at execution: seq_offsets is NULL and seq_len is 0. Each dr_execute then needs dr_tensors.seq_offsets.
 * num_tokens and num_seqs are upper bounds, which fix the workspace and the tiling. dr_tensors.num_tokens and num_seqs
 * give the rows and sequences of one call.
 *
 * Batched sequences: seq_len > 0, and the tensors are [num_seqs, seq_len, ...] with one sequence per row. num_tokens is
 * 0 or num_seqs * seq_len.
 *
 * Sequences of length 0 and 1 are legal. */
typedef struct dr_problem {
  uint32_t size;    /* sizeof(dr_problem) */
  int32_t rule;     /* DR_KDA or DR_GDN */
  int32_t op;       /* DR_FORWARD, or a stage: DR_CHUNK_LOCAL to DR_CARRY */
  int32_t reserved; /* zero */

  int64_t num_seqs;          /* 1 to 65,536; this bound and the bound on heads keep planning within milliseconds */
  int64_t num_tokens;        /* T, rows of the packed tensors */
  int64_t seq_len;           /* 0: packed; above 0: batched, tokens of every sequence */
  const void* seq_offsets;   /* host memory, num_seqs + 1 entries; NULL: see above */
  int32_t seq_offsets_dtype; /* type of seq_offsets here and in dr_tensors: DR_INT32 (default) or DR_INT64 */

  int32_t heads_qk; /* HQK, 1 to 65,536 */
  int32_t heads_v;  /* HV, 1 to 65,536, a multiple of HQK: value head h reads query/key head h / (HV / HQK) */
  int32_t dk;       /* DK, width of a key head, 1 to 256 */
  int32_t dv;       /* DV, width of a value head, 1 to 512 */

  int32_t dtype;         /* of q, k, v; default DR_FP32 */
  int32_t dtype_o;       /* default: dtype */
  int32_t dtype_gate;    /* default: dtype */
  int32_t dtype_beta;    /* default: dtype */
  int32_t dtype_a_log;   /* default DR_FP32 */
  int32_t dtype_dt_bias; /* default DR_FP32 */

  int32_t gate_form;   /* DR_GATE_* */
  int32_t beta_form;   /* DR_BETA_* */
  int32_t l2norm;      /* nonzero: q and k are first multiplied by rsqrt(sum of squares + 1e-6) */
  int32_t scale_given; /* zero: scale is DK^-1/2; nonzero: the field scale counts */
  float scale;         /* factor on q; finite */
  float lower_bound;   /* raw bounded gate: finite, below 0 */
  float gate_floor;    /* log and linear gates: promise that log-decays are >= this number, which is below 0. Lower
                          log-decays are raised to it. 0: no promise */

  dr_layout layout_q, layout_k; /* [T, HQK, DK] */
  dr_layout layout_v, layout_o; /* [T, HV, DV] */
  dr_layout layout_g;           /* [T, HV, DK] (KDA) or [T, HV] (GDN) */
  dr_layout layout_beta;        /* [T, HV] */

  dr_state initial;     /* states before the first token; DR_STATE_NONE: zero */
  dr_state final;       /* states after the last token; may be the same memory as initial, slot for slot */
  int32_t initial_mask; /* nonzero: dr_tensors.has_initial says for each sequence whether to read its initial state */

  int32_t checkpoints;      /* DR_CHECKPOINTS_* */
  int64_t checkpoint_every; /* DR_CHECKPOINTS_EVERY: a multiple of 16 */
  dr_state checkpoint;      /* rows are in sequence order. Rows per sequence: EVERY floor(len / n), CHUNKS
                               ceil(len / 64), LIST as dr_tensors.checkpoint_offsets says */

  const dr_chunks* chunks;     /* DR_CHUNK_LOCAL to DR_CARRY; else NULL */
  const dr_backward* backward; /* NULL in this version */
  const dr_steps* steps;       /* NULL in this version */
} dr_problem;

/* Sets every field to zero and then the size. Like all dr_*_init functions it is compiled into the caller, because only
 * the caller knows the size of its own structure. */
static inline void dr_problem_init(dr_problem* problem) {
  memset(problem, 0, sizeof *problem);
  problem->size = (uint32_t)sizeof *problem;
}

/* ---- devices: facts as data, so a plan can be made and read for a device that is not here ---------------------- */

/* dr_device.kind */
enum { DR_DEVICE_CPU = 1, DR_DEVICE_CUDA = 2 };

/* Facts about a device. The planner uses nothing else about a machine. */
typedef struct dr_device {
  uint32_t size;              /* sizeof(dr_device) */
  int32_t kind;               /* DR_DEVICE_CPU or DR_DEVICE_CUDA */
  char name[32];              /* "cpu"; "h200", ...: a GPU model; "cuda:0", ...: a GPU of this machine */
  char model[64];             /* name given by the manufacturer; "": unknown */
  int32_t units;              /* threads of a CPU or multiprocessors of a GPU; 1 to 65,536 */
  int32_t compute_capability; /* 90 for 9.0; 0 for a CPU */
  int64_t l1_bytes;           /* L1 data cache or shared memory of one unit */
  int64_t l2_bytes;           /* L2 cache */
  int32_t bytes_per_ns;       /* memory bandwidth in GB/s; 0: the cost model ignores memory traffic */
  int32_t flops_per_ns;       /* CPU: fp32 GFLOP/s of one unit; 0: unknown */
} dr_device;

/* Sets every field to zero and then the size. */
static inline void dr_device_init(dr_device* device) {
  memset(device, 0, sizeof *device);
  device->size = (uint32_t)sizeof *device;
}

/* Returns the number of known devices: this machine's CPU (index 0), then a table of GPU models, then the GPUs of this
 * machine, named "cuda:0", "cuda:1", ... (none without a driver).
 *
 * The units of this machine's CPU are the CPUs that the process may use, whichever thread asks: the affinity of the
 * main thread, limited by the cgroup quota (version 1 or 2), rounded up. The library reads the affinity in each call of
 * the dr_device functions and for each plan without dr_options.device; it reads the quota once. If a program pins its
 * main thread, or needs the same plans on every machine, it should pass its own facts in dr_options.device. With
 * dr_options.invariant the same bits need the same units, because the units set the grain. */
DR_API int32_t dr_device_count(void);

/* Fills `device` with the facts of device `index`. Returns DR_INVALID if the index is not in [0, dr_device_count()). */
DR_API dr_status dr_device_get(int32_t index, dr_device* device);

/* Fills `device` with the facts of the device `name`. "cuda" means the current GPU of the calling thread. Returns
 * DR_INVALID for an unknown name. */
DR_API dr_status dr_device_find(const char* name, dr_device* device);

/* Cost of the stages of one backend and variant on one unit of a device, at DK = DV = 128, for one rule and operation.
 * The planner works with these numbers, in whole nanoseconds. */
typedef struct dr_costs {
  uint32_t size;              /* sizeof(dr_costs) */
  int32_t rule;               /* DR_KDA or DR_GDN */
  int32_t op;                 /* DR_FORWARD */
  int32_t measured;           /* nonzero: measured on this model; 0: estimated from measurements on another model */
  char backend[24];           /* "cpu", "cuda-sm90", ... */
  char variant[24];           /* "" if the backend has one variant only */
  char measured_on[40];       /* model on which the numbers were measured */
  int32_t chunk;              /* tokens per chunk */
  int32_t emit_ns;            /* emit, per chunk and head */
  int32_t summarize_ns;       /* summarize (M and B), per chunk and head */
  int32_t local_ns;           /* part of emit_ns that every unit repeats when value columns are spread over units */
  int32_t summarize_local_ns; /* the same part of summarize_ns */
  int32_t carry_ns;           /* latency of one fold */
  int32_t carry_unit_ns;      /* time of one unit for one fold of one head */
  int32_t split_ns;           /* extra launches and barriers of a plan that cuts sequences */
  int32_t item_ns;            /* start-up of one work item */
  int32_t emit_bytes;         /* memory traffic of emit, per chunk and head */
  int32_t summarize_bytes;    /* memory traffic of summarize, per chunk and head */
  int32_t prepare_ns;         /* separate prepare step, per chunk and head; 0: part of emit and summarize */
} dr_costs;

/* Sets every field to zero and then the size. */
static inline void dr_costs_init(dr_costs* costs) {
  memset(costs, 0, sizeof *costs);
  costs->size = (uint32_t)sizeof *costs;
}

/* Fills `costs` with the costs that the planner uses for `device`. A backend with one variant takes `variant` NULL or
 * "". Returns DR_INVALID if the backend or its variant has no costs on this kind of device.
 *
 * The costs of the cpu backend were measured on an Arm Neoverse-V1. For another CPU the library scales them by
 * flops_per_ns, if the caller states it. `deltarelay calibrate` measures flops_per_ns and the costs. A caller with
 * better numbers passes them in dr_options.costs. */
DR_API dr_status dr_device_costs(const dr_device* device, const char* backend, const char* variant, int32_t rule,
                                 int32_t op, dr_costs* costs);

/* ---- options: how to compute it -------------------------------------------------------------------------------- */

/* dr_options.segments: where sequences are cut. */
enum {
  DR_SEGMENTS_AUTO = 0,  /* the planner cuts where its cost model predicts a gain */
  DR_SEGMENTS_OFF = 1,   /* no sequence is cut */
  DR_SEGMENTS_COUNT = 2, /* a sequence with at least segment_value chunks is cut into segment_value segments; a shorter
                            one stays whole */
  DR_SEGMENTS_LENGTH = 3 /* segments of segment_value tokens, a multiple of the chunk */
};

/* dr_options.carry: may old history be dropped? With DR_CARRY_TRUNCATED a transition whose norm is at most
 * e^carry_log_decay may be taken as 0. The error of the next state is then at most that fraction of the previous state.
 * Truncation needs problem.l2norm and a sigmoid form of beta; with both, no token makes a state grow. Whether anything
 * is dropped depends on the values and on the cuts of the plan. The cpu and reference backends never drop anything and
 * treat DR_CARRY_TRUNCATED as exact. */
enum { DR_CARRY_EXACT = 0, DR_CARRY_TRUNCATED = 1 };

/* dr_options.math: how products may round. */
enum {
  DR_MATH_DEFAULT = 0, /* within the tolerances of docs/numerics.md */
  DR_MATH_TF32 = 1     /* cuda-sm80, fp32 data: one TF32 product (11-bit factors) instead of three; less exact */
};

/* The work of one parallel loop: the library passes a function that handles index i. */
typedef void (*dr_parallel_body)(void* context, int64_t i);
/* A caller's thread pool: calls body(context, i) for every i in [0, count), on any threads, and returns when all calls
 * have returned. `pool` is dr_options.parallel_pool. */
typedef void (*dr_parallel_for)(void* pool, int64_t count, dr_parallel_body body, void* context);

/* How to compute. Call dr_options_init, then set the fields that differ from their default. The caller owns the
 * structure and what its pointers name; a plan keeps only parallel_for and parallel_pool.
 *
 * A plan for a device that is not here can be read but not executed. A "cuda:N" is here if its units and compute
 * capability equal those of that GPU; the caller may change its other facts and its costs. A CPU is always here,
 * whatever its facts are. The facts of a CPU decide how work is cut and, if `threads` is 0, on how many threads it runs
 * (one per unit, at most 4096). */
typedef struct dr_options {
  uint32_t size;                /* sizeof(dr_options) */
  int32_t segments;             /* DR_SEGMENTS_* */
  int64_t segment_value;        /* for DR_SEGMENTS_COUNT and _LENGTH */
  const char* backend;          /* a name from dr_backend_name; NULL: the first backend that accepts the problem */
  const char* isa;              /* cpu backend: a name from dr_isa_name; NULL: the best one of this machine */
  const char* variant;          /* cuda-sm90: "fused" or "prepared"; NULL: the faster one by the cost model */
  const char* policy;           /* NULL or "deltarelay"; or another system's rule for cuts: "fla", "cula-sm100", ... */
  const dr_device* device;      /* NULL: this machine's CPU, or its current GPU if `backend` is a CUDA backend */
  int32_t threads;              /* CPU threads; 0: one per unit of the device */
  int32_t invariant;            /* nonzero: the output bits of a sequence do not depend on the rest of the batch */
  int32_t carry;                /* DR_CARRY_* */
  float carry_log_decay;        /* DR_CARRY_TRUNCATED: natural logarithm, from -80 to below 0; 0 means -16. Else 0 */
  const int32_t* columns;       /* reference backend: compute only these value columns; others keep their contents */
  int32_t num_columns;          /* entries of columns */
  int32_t math;                 /* DR_MATH_* */
  const dr_costs* costs;        /* replace the library's costs for their backend, variant, rule and operation */
  int32_t num_costs;            /* entries of costs, which lie costs[0].size bytes apart */
  int32_t reserved;             /* zero */
  dr_parallel_for parallel_for; /* NULL: a pool of the library, created at first use */
  void* parallel_pool;          /* passed to parallel_for; must live as long as the plan */
} dr_options;

/* Sets every field to zero and then the size. */
static inline void dr_options_init(dr_options* options) {
  memset(options, 0, sizeof *options);
  options->size = (uint32_t)sizeof *options;
}

/* ---- plans ----------------------------------------------------------------------------------------------------- */

/* How a problem will be computed. A plan is immutable, and threads may share it. It keeps no pointer into the problem
 * or the options except parallel_pool. */
typedef struct dr_plan dr_plan;

/* Validates the problem and the options (NULL: all defaults), chooses backend, segments and tiling, and writes a new
 * plan to `*plan`. The caller owns the plan and frees it with dr_plan_destroy. For a GPU of this machine, the call also
 * loads every kernel that the plan may launch.
 *
 * A problem within the limits of its fields takes at most 50 ms on a server core. DR_UNSUPPORTED is returned for more
 * than 2^30 chunks, for forced cuts into more than 262,144 segments beyond the first of each sequence, and for sizes
 * and device facts whose product overflows the cost model. On failure `*plan` is not changed. */
DR_API dr_status dr_plan_create(const dr_problem* problem, const dr_options* options, dr_plan** plan);

/* Frees a plan. NULL is allowed. No call on this plan may be in progress. Work on a stream continues.
 * */
DR_API void dr_plan_destroy(dr_plan* plan);

/* Writes the size of the workspace that dr_execute needs. May be 0. */
DR_API dr_status dr_plan_workspace_bytes(const dr_plan* plan, size_t* bytes);

/* The main decisions of a plan, as numbers. */
typedef struct dr_plan_summary {
  uint32_t size;         /* sizeof(dr_plan_summary) */
  int32_t chunk;         /* tokens per chunk */
  const char* backend;   /* lives as long as the library */
  const char* isa;       /* instruction set of the cpu backend, else ""; lives as long as the library */
  const char* variant;   /* "" if the backend has one variant only; lives as long as the library */
  int64_t num_segments;  /* of all sequences; if nothing is cut, the number of non-empty sequences */
  int64_t max_segments;  /* largest number of segments of one sequence */
  int64_t cut_sequences; /* sequences with more than one segment */
  int32_t threads;       /* CPU threads */
  int32_t value_tiles;   /* work items that share the value columns of one head */
  int64_t grain;         /* invariant mode: chunks between absolute cuts; 0: not invariant; -1: infinite */
  int64_t predicted_ns;  /* time by the cost model */
  int64_t unsplit_ns;    /* time by the cost model if nothing were cut */
} dr_plan_summary;

/* Sets every field to zero and then the size. */
static inline void dr_plan_summary_init(dr_plan_summary* summary) {
  memset(summary, 0, sizeof *summary);
  summary->size = (uint32_t)sizeof *summary;
}

/* Fills `summary`, whose size must be set. If lengths come at execution, the segment counts are 0. */
DR_API dr_status dr_plan_summarize(const dr_plan* plan, dr_plan_summary* summary);

/* Formats of dr_plan_describe. */
enum {
  DR_DESCRIBE_TEXT = 0,     /* words: the choice, the cost of rejected candidates, why other backends declined */
  DR_DESCRIBE_JSON = 1,     /* every decision, and the modelled schedule beside the unsplit one. A list of more than
                               20,000 entries is left out; "lengths_omitted", "table_omitted" or "schedule_omitted"
                               then gives its length */
  DR_DESCRIBE_SIGNATURE = 2 /* one line: everything that fixes the bits of the result */
};

/* Writes a description of the plan to `text`: at most `capacity` bytes with the final NUL. `needed` (may be NULL)
 * receives the full size with the NUL. A text that does not fit is cut and the call still succeeds, so a first call may
 * pass (NULL, 0) to ask for the size. */
DR_API dr_status dr_plan_describe(const dr_plan* plan, int32_t format, char* text, size_t capacity, size_t* needed);

/* ---- execution ------------------------------------------------------------------------------------------------- */

/* Pointers of one execution, in the shapes, strides and types of the problem. The caller owns all of them.
 *
 * Memory. For a CPU plan every pointer and the workspace is in host memory, for a CUDA plan in memory of its GPU; this
 * includes index arrays, lists and the report. The library checks the values of lists in host memory. On a GPU it
 * clamps them and sets a bit in the report. A pointer that the problem does not use must be NULL; only a_log and
 * dt_bias are ignored instead. A tensor without elements may be NULL.
 *
 * Aliasing. What a call writes (o, final states, checkpoints, report, workspace) must not share memory with anything
 * else that the call reads or writes; otherwise the call is refused. The check compares elements, not address ranges,
 * so tensors, o included, may be views of one packed row. A pool with slots counts as a whole. A workspace counts up to
 * dr_plan_workspace_bytes. If two strides have a greatest common divisor of a few bytes, the check can take too long;
 * such tensors are accepted unchecked.
 *
 * Pools may share memory slot by slot. Two rows must not write the same slot. A checkpoint must not go where a final
 * state goes. A sequence must not read a slot that another sequence writes. It may write the slot that it reads: final
 * states in place of initial states. In host memory a call that breaks a rule is refused; for pools with different
 * strides, the library compares up to 65,536 pairs of rows. On a GPU the report says so, except for pools with
 * different strides.
 *
 * Counts. T and N below are num_tokens and num_seqs of this call, or those of the problem if they are 0. If lengths
 * come at execution, a call may have fewer tokens and sequences than the bounds of the problem, and its time follows
 * its own counts. Arrays then have T rows and N entries, and nothing beyond is read or written. In o, the call writes
 * the rows of the sequences, sets the rows from the last offset to T to zero, and does not touch rows from T on. A
 * captured CUDA graph keeps the counts of its capture. A replay with fewer tokens or sequences changes the offsets on
 * the device and ends them with empty sequences.
 *
 * Continuing from a final state. If the prefix ends at a multiple of the plan's chunk (in the invariant mode: of the
 * grain), the continuation gives the same bits as the whole sequence. Elsewhere results agree within rounding. */
typedef struct dr_tensors {
  uint32_t size;      /* sizeof(dr_tensors) */
  uint32_t reserved;  /* zero */
  int64_t num_tokens; /* T; 0: as the problem says. Smaller than problem.num_tokens only if lengths come at execution */
  int64_t num_seqs;   /* N; 0: as the problem says. Smaller than problem.num_seqs only if lengths come at execution */
  const void* q;      /* [T, HQK, DK] */
  const void* k;      /* [T, HQK, DK] */
  const void* v;      /* [T, HV, DV] */
  const void* g;      /* [T, HV, DK] (KDA) or [T, HV] (GDN) */
  const void* beta;   /* [T, HV] */
  const void* a_log;  /* [HV]; raw gates. NULL with the bounded form: factor 1 */
  const void* dt_bias; /* [HV, DK] (KDA) or [HV] (GDN); raw gates. NULL: no bias */
  void* o;             /* [T, HV, DV], written */

  const void* initial;                 /* state pool, read */
  const void* initial_index;           /* [N], with DR_STATE_SLOTS */
  const uint8_t* has_initial;          /* [N], with initial_mask; 0: the sequence starts from zero */
  void* final;                         /* state pool, written */
  const void* final_index;             /* [N], with DR_STATE_SLOTS */
  void* checkpoint;                    /* state pool, written */
  const void* checkpoint_index;        /* one entry per checkpoint row, with DR_STATE_SLOTS */
  const int32_t* checkpoint_offsets;   /* LIST: [N + 1]; sequence n has rows [offsets[n], offsets[n+1]) */
  const int32_t* checkpoint_positions; /* LIST: token counts, increasing within a sequence, multiples of 16, at most the
                                          length of the sequence */

  const void* seq_offsets; /* [N + 1], only if lengths come at execution */
  uint32_t* report;        /* may be NULL; receives 0 or DR_REPORT_* bits */

  const dr_intermediates* intermediates; /* DR_CHUNK_LOCAL to DR_CARRY; else NULL */
  const dr_gradients* gradients;         /* NULL in this version */
  const dr_drafts* drafts;               /* NULL in this version */
} dr_tensors;

/* Bits of dr_tensors.report. */
enum {
  DR_REPORT_OFFSETS = 1,     /* seq_offsets on the device were out of range and were clamped */
  DR_REPORT_SLOTS = 2,       /* a slot index on the device was out of range and was clamped */
  DR_REPORT_CHECKPOINTS = 4, /* a checkpoint list on the device was out of range and was clamped */
  DR_REPORT_DROPPED = 8,     /* a truncated carry dropped a transition that was not 0 */
  DR_REPORT_ALIASES = 16     /* slots share memory against the rules above; some states are undefined */
};

/* Sets every field to zero and then the size. */
static inline void dr_tensors_init(dr_tensors* tensors) {
  memset(tensors, 0, sizeof *tensors);
  tensors->size = (uint32_t)sizeof *tensors;
}

/* Runs the plan. It allocates no memory for the result and keeps no pointer.
 *
 * `workspace` is 256-byte aligned and has at least dr_plan_workspace_bytes bytes; its contents are undefined before and
 * after the call. Executions that run at the same time need one workspace each. `stream` is a cudaStream_t for a GPU
 * plan; the call then returns before the work is done. For a CPU plan `stream` must be NULL.
 *
 * Returns DR_INVALID if tensors, workspace or stream break a rule, DR_UNSUPPORTED if the plan's device is not here, and
 * DR_DEVICE_ERROR if a launch fails. */
DR_API dr_status dr_execute(const dr_plan* plan, const dr_tensors* tensors, void* workspace, size_t workspace_bytes,
                            void* stream);

/* ---- backends -------------------------------------------------------------------------------------------------- */

/* Returns the number of backends, in order of preference. The last is "reference": it accepts every valid problem, but
 * never cuts a sequence. */
DR_API int32_t dr_backend_count(void);

/* Returns the name of a backend, or NULL if the index is out of range. The text lives as long as the library. */
DR_API const char* dr_backend_name(int32_t index);

/* Would this backend serve the problem? Returns DR_SUCCESS; DR_UNSUPPORTED, and dr_last_error gives the reason; or
 * DR_INVALID. `options` may be NULL. */
DR_API dr_status dr_backend_check(int32_t index, const dr_problem* problem, const dr_options* options);

/* Returns the number of instruction sets of the cpu backend that this machine has, best first. Linux grants AMX to a
 * process on request, for good. Listing does not ask. dr_plan_create asks, for a plan that multiplies with AMX. If
 * Linux refuses, the plan takes the next set, and its signature names it. */
DR_API int32_t dr_isa_count(void);

/* Returns the name of an instruction set, or NULL if the index is out of range. The text lives as long as the library.
 * */
DR_API const char* dr_isa_name(int32_t index);

#ifdef __cplusplus
}
#endif
#endif /* DELTARELAY_DELTARELAY_H_ */
