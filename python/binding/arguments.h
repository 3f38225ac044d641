/* The tensors of one call, read from Python objects without copies and without calling their methods. */
#ifndef DELTARELAY_BINDING_ARGUMENTS_H_
#define DELTARELAY_BINDING_ARGUMENTS_H_

#include <stdbool.h>

#include "dlpack_abi.h"
#include "python_api.h"

/* In the order of the pointers of dr_tensors; `first_pointer` relies on it. */
enum {
  ARG_Q,
  ARG_K,
  ARG_V,
  ARG_G,
  ARG_BETA,
  ARG_A_LOG,
  ARG_DT_BIAS,
  ARG_O,
  ARG_INITIAL,
  ARG_INITIAL_INDEX,
  ARG_HAS_INITIAL,
  ARG_FINAL,
  ARG_FINAL_INDEX,
  ARG_CHECKPOINT,
  ARG_CHECKPOINT_INDEX,
  ARG_CHECKPOINT_OFFSETS,
  ARG_CHECKPOINT_POSITIONS,
  ARG_SEQ_OFFSETS,
  ARG_REPORT,
  NUM_POINTERS,
  ARG_HOST_OFFSETS = NUM_POINTERS, /* read here, never passed to dr_execute */
  NUM_ARGS
};

enum { MAX_NDIM = 6 };

/* The framework of a tensor. All tensors of a call have the same. */
typedef enum { FRAMEWORK_NONE, FRAMEWORK_TORCH, FRAMEWORK_NUMPY } Framework;

typedef struct {
  bool given;
  void* data;
  DlpackDevice device;
  DlpackType dtype;
  int32_t ndim;
  int64_t shape[MAX_NDIM];
  int64_t strides[MAX_NDIM]; /* elements */
} View;

typedef struct {
  Framework framework;
  View views[NUM_ARGS];
  Py_buffer buffers[NUM_ARGS]; /* NumPy, held during the call */
  int num_buffers;
} Arguments;

/* What the binding knows about a framework. Set once from Python. */
typedef struct {
  PyObject* types[2]; /* only exactly these are read here: torch.Tensor and Parameter */
  PyObject* is_grad_enabled;
  PyObject* num_modes;  /* () -> dispatch modes that are active */
  PyObject* is_tracing; /* () -> does torch.jit.trace run? */
  PyObject* forward_ad; /* the module; its _current_level is 0 or more inside of a dual_level */
  PyObject* increment_version;
  const DlpackExchange* exchange;
} Torch;
typedef struct {
  PyObject* type; /* numpy.ndarray */
  PyObject* empty;
} NumPy;
extern Torch g_torch;
extern NumPy g_numpy;

typedef enum {
  READ_DONE,
  READ_DECLINED, /* only Python can judge it: another type, a gradient, a lazy negation */
  READ_FAILED    /* a Python exception is set */
} ReadResult;

/* `in_operator`: torch's dispatcher calls, and all who watch what torch computes have seen the call. */
ReadResult read_arguments(PyObject* const* objects, bool in_operator, Arguments* arguments);
void release_arguments(Arguments* arguments);

/* Does the call write to this argument, if the caller gives it? */
bool is_written(int argument);

#endif
