/* What is cached of a plan: enough to run it again on other pointers. */
#ifndef DELTARELAY_BINDING_ENTRY_H_
#define DELTARELAY_BINDING_ENTRY_H_

#include "arguments.h"
#include "deltarelay/deltarelay.h"

enum { MAX_OUTPUTS = 3 }; /* o, final states, checkpoints */

typedef struct {
  int argument;
  DlpackType dtype;
  int32_t ndim;
  int64_t shape[MAX_NDIM];
  PyObject* numpy_shape; /* a tuple */
  PyObject* numpy_dtype;
} Output;

typedef struct {
  PyObject_HEAD PyObject* plan; /* the Python object that owns the plan */
  const dr_plan* handle;
  size_t workspace_bytes;
  DlpackDevice device;
  uint32_t pointers; /* one bit for each argument whose pointer the call takes */
  bool late;         /* the plan has a bound on the tokens; each call gives its own count */
  int num_outputs;
  Output outputs[MAX_OUTPUTS]; /* that are allocated */
  bool used;                   /* found again: the entry leaves the cache later */
} Entry;

extern PyTypeObject* g_entry_type;
int entry_add_type(PyObject* module);

/* Returns memory of torch without a Python object, which would cost a microsecond; the caller releases it by its
 * `deleter`. NULL with an exception set on failure. */
DlpackManaged* allocate_managed(const Output* output, DlpackDevice device, void** data);
/* Returns a new object of the framework and its memory, or NULL with an exception set. */
PyObject* allocate(Framework framework, const Output* output, DlpackDevice device, void** data);
/* The output has the shape of v, which the plan may not know. Returns NULL with an exception set on failure. */
PyObject* allocate_like(Framework framework, const Output* output, const View* view, DlpackDevice device, void** data);

#endif
