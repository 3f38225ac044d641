/* What is kept of a plan: enough to run it again on other pointers. */
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
  uint32_t pointers; /* a bit for each argument whose pointer the call takes */
  bool late;         /* the plan knows a bound of the tokens; a call says how many it has */
  int num_outputs;
  Output outputs[MAX_OUTPUTS]; /* that are allocated */
  bool used;                   /* once the entry was found again: its turn to leave the cache comes later */
} Entry;

extern PyTypeObject* g_entry_type;
int entry_add_type(PyObject* module);

/* Memory of torch without an object of Python around it, which costs a microsecond. To be released by its `deleter`. NULL with
 * an exception set. */
DlpackManaged* allocate_managed(const Output* output, DlpackDevice device, void** data);
/* A new object of the framework, and its memory. NULL with an exception set. */
PyObject* allocate(Framework framework, const Output* output, DlpackDevice device, void** data);
/* Outputs have v's shape, which the plan may not know. NULL with an exception set. */
PyObject* allocate_like(Framework framework, const Output* output, const View* view, DlpackDevice device, void** data);

#endif
