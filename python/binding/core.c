/* deltarelay._core: one call from Python to dr_execute in a few microseconds.
 *
 * A call reads its tensors (arguments.c), builds the key of its plan (key.c) and looks it up. If the plan is cached,
 * the call allocates outputs and workspace in the framework, asks for its stream, releases the GIL and runs. Everything
 * that happens once per plan, checks and messages included, is in Python (deltarelay/_plans.py). */
#include <string.h>

#include "arguments.h"
#include "entry.h"
#include "key.h"

typedef dr_status (*ExecuteFunction)(const dr_plan*, const dr_tensors*, void*, size_t, void*);
typedef const char* (*LastErrorFunction)(void);

static ExecuteFunction g_execute;
static LastErrorFunction g_last_error;
static PyObject* g_plans;     /* dict: key -> Entry, or a value that Python must see again */
static PyObject* g_make_plan; /* (settings, arguments, key) -> the value */
static PyObject* g_fail;      /* (status, message): raises */
static PyObject* g_key_name;
static PyObject* g_last_plan_name; /* in the thread's dict */

enum { WORKSPACE_ALIGNMENT = 256 };

static void* aligned(void* memory) {
  const uintptr_t address = (uintptr_t)memory;
  return (void*)((address + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT);
}

/* Memory that only the call needs, and who holds it. */
typedef struct {
  DlpackManaged* managed; /* of torch */
  PyObject* array;        /* of NumPy */
  void* memory;
} Workspace;

/* False with an exception set. */
static bool allocate_workspace(Framework framework, const Entry* entry, Workspace* workspace) {
  static PyObject* byte_type;
  if (byte_type == NULL && (byte_type = PyUnicode_InternFromString("u1")) == NULL) return false;
  Output bytes = {.dtype = {DLPACK_UINT, 8, 1}, .ndim = 1, .numpy_dtype = byte_type};
  bytes.shape[0] = (int64_t)(entry->workspace_bytes + WORKSPACE_ALIGNMENT);
  if (framework == FRAMEWORK_TORCH) {
    workspace->managed = allocate_managed(&bytes, entry->device, &workspace->memory);
  } else {
    bytes.numpy_shape = PyLong_FromLongLong(bytes.shape[0]);
    if (bytes.numpy_shape == NULL) return false;
    workspace->array = allocate(framework, &bytes, entry->device, &workspace->memory);
    Py_DECREF(bytes.numpy_shape);
  }
  workspace->memory = aligned(workspace->memory);
  return workspace->managed != NULL || workspace->array != NULL;
}

/* What is queued on the stream still has the memory: frameworks give it away again in the order of the stream. */
static void release_workspace(Workspace* workspace) {
  if (workspace->managed != NULL && workspace->managed->deleter != NULL)
    workspace->managed->deleter(workspace->managed);
  Py_XDECREF(workspace->array);
}

static int current_stream(Framework framework, DlpackDevice device, void** stream) {
  *stream = NULL;
  if (framework != FRAMEWORK_TORCH || device.type != DLPACK_CUDA) return 0;
  if (g_torch.exchange->current_stream(device.type, device.id, stream) == 0) return 0;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "torch could not name its current stream");
  return -1;
}

static int remember_plan(PyObject* plan) {
  PyObject* thread = PyThreadState_GetDict(); /* borrowed */
  return thread == NULL ? 0 : PyDict_SetItem(thread, g_last_plan_name, plan);
}

static PyObject* remember(PyObject* module, PyObject* plan) {
  (void)module;
  if (remember_plan(plan) != 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject* last_plan(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  PyObject* thread = PyThreadState_GetDict(); /* borrowed, like its values */
  PyObject* plan = thread == NULL ? NULL : PyDict_GetItemWithError(thread, g_last_plan_name);
  if (plan == NULL && PyErr_Occurred()) return NULL;
  if (plan == NULL) plan = Py_None;
  Py_INCREF(plan);
  return plan;
}

/* The pointers of dr_tensors follow each other in the order of the arguments. */
static void set_pointers(dr_tensors* tensors, const Entry* entry, const Arguments* arguments) {
  const void** pointers = (const void**)&tensors->q;
  for (int i = 0; i < NUM_POINTERS; ++i)
    if (entry->pointers >> i & 1u) pointers[i] = arguments->views[i].data;
}

/* Returns (o, final, checkpoint), with None for what is neither requested nor given. */
static PyObject* results_of(PyObject* const* objects, PyObject* const* made) {
  static const int kResults[MAX_OUTPUTS] = {ARG_O, ARG_FINAL, ARG_CHECKPOINT};
  PyObject* results = PyTuple_New(MAX_OUTPUTS);
  if (results == NULL) return NULL;
  for (int i = 0; i < MAX_OUTPUTS; ++i) {
    PyObject* object = made[kResults[i]] != NULL ? made[kResults[i]] : objects[kResults[i]];
    Py_INCREF(object);
    PyTuple_SetItem(results, i, object);
  }
  return results;
}

/* Raises as for a status of the library. */
static void fail(dr_status status, const char* message) {
  Py_XDECREF(PyObject_CallFunction(g_fail, "is", (int)status, message));
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, message);
}

/* The library reads as many positions and slots as the offsets say, and does not know how many there are. Offsets in
 * the memory of a device cannot be looked at here. False with an exception set. */
static bool check_list(const Arguments* arguments) {
  const View* offsets = &arguments->views[ARG_CHECKPOINT_OFFSETS];
  if (!offsets->given || offsets->device.type != DLPACK_CPU) return true;
  const int64_t positions = arguments->views[ARG_CHECKPOINT_POSITIONS].shape[0];
  for (int64_t i = 0; i < offsets->shape[0]; ++i) {
    const int32_t offset = ((const int32_t*)offsets->data)[i];
    if (offset <= positions) continue;
    char message[128];
    PyOS_snprintf(message, sizeof message,
                  "checkpoint_offsets[%lld]: expected at most %lld, the length of %s, found %d", (long long)i,
                  (long long)positions, "checkpoint_positions", (int)offset);
    fail(DR_INVALID, message);
    return false;
  }
  return true;
}

/* Autograd compares versions of the tensors it has saved. Before the call, because one that fails may have written. */
static bool raise_versions(PyObject* const* objects, const Arguments* arguments) {
  if (arguments->framework != FRAMEWORK_TORCH) return true;
  PyObject* written[NUM_ARGS];
  int count = 0;
  for (int i = 0; i < NUM_ARGS; ++i)
    if (is_written(i) && arguments->views[i].given) written[count++] = objects[i];
  if (count == 0) return true;
  PyObject* tuple = PyTuple_New(count);
  if (tuple == NULL) return false;
  for (int i = 0; i < count; ++i) {
    Py_INCREF(written[i]);
    PyTuple_SetItem(tuple, i, written[i]);
  }
  PyObject* result = PyObject_CallFunctionObjArgs(g_torch.increment_version, tuple, NULL);
  Py_DECREF(tuple);
  Py_XDECREF(result);
  return result != NULL;
}

static PyObject* run(const Entry* entry, PyObject* const* objects, const Arguments* arguments) {
  if (!check_list(arguments) || !raise_versions(objects, arguments)) return NULL;
  dr_tensors tensors;
  dr_tensors_init(&tensors);
  set_pointers(&tensors, entry, arguments);
  const View* q = &arguments->views[ARG_Q];
  if (entry->late) tensors.num_tokens = q->shape[q->ndim - 3];
  PyObject* made[NUM_ARGS] = {NULL};
  Workspace workspace = {NULL, NULL, NULL};
  PyObject* results = NULL;
  void* stream = NULL;
  for (int i = 0; i < entry->num_outputs; ++i) {
    const Output* output = &entry->outputs[i];
    void* data = NULL;
    made[output->argument] = output->argument == ARG_O ? allocate_like(arguments->framework, output,
                                                                       &arguments->views[ARG_V], entry->device, &data)
                                                       : allocate(arguments->framework, output, entry->device, &data);
    if (made[output->argument] == NULL) goto done;
    ((void**)&tensors.q)[output->argument] = data;
  }
  if (entry->workspace_bytes > 0 && !allocate_workspace(arguments->framework, entry, &workspace)) goto done;
  if (current_stream(arguments->framework, entry->device, &stream) != 0 || remember_plan(entry->plan) != 0) goto done;

  dr_status status;
  const char* message = NULL;
  Py_BEGIN_ALLOW_THREADS status = g_execute(entry->handle, &tensors, workspace.memory, entry->workspace_bytes, stream);
  if (status != DR_SUCCESS) message = g_last_error();
  Py_END_ALLOW_THREADS if (status == DR_SUCCESS) results = results_of(objects, made);
  else fail(status, message);

done:
  release_workspace(&workspace);
  for (int i = 0; i < NUM_ARGS; ++i) Py_XDECREF(made[i]);
  return results;
}

static PyObject* new_plan(PyObject* settings, PyObject* const* objects, PyObject* key) {
  PyObject* arguments = PyTuple_New(NUM_ARGS);
  if (arguments == NULL) return NULL;
  for (int i = 0; i < NUM_ARGS; ++i) {
    Py_INCREF(objects[i]);
    PyTuple_SetItem(arguments, i, objects[i]);
  }
  PyObject* value = PyObject_CallFunctionObjArgs(g_make_plan, settings, arguments, key, NULL);
  Py_DECREF(arguments);
  return value;
}

/* Returns a new reference to the value of the key. */
static PyObject* find_plan(PyObject* settings, PyObject* const* objects, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(g_plans, key); /* borrowed */
  if (found == NULL) return PyErr_Occurred() ? NULL : new_plan(settings, objects, key);
  Py_INCREF(found);
  if (Py_TYPE(found) == g_entry_type) ((Entry*)found)->used = true;
  return found;
}

static PyObject* run_call(PyObject* const* objects, Py_ssize_t count, bool in_operator) {
  if (count != 1 + NUM_ARGS) {
    PyErr_Format(PyExc_TypeError, "call: expected settings and %d tensors, found %zd arguments", NUM_ARGS, count);
    return NULL;
  }
  if (g_execute == NULL) {
    PyErr_SetString(PyExc_RuntimeError, "call: expected set_library() first");
    return NULL;
  }
  PyObject* settings = objects[0];
  ++objects;
  Arguments arguments;
  PyObject *result = NULL, *settings_key = NULL, *key = NULL, *value = NULL;
  const ReadResult read = read_arguments(objects, in_operator, &arguments);
  if (read == READ_FAILED) goto done;
  if (read == READ_DECLINED) goto declined;
  settings_key = PyObject_GetAttr(settings, g_key_name);
  if (settings_key == NULL) goto done;
  key = key_of(settings_key, &arguments);
  if (key == NULL) {
    if (PyErr_Occurred()) goto done;
    goto declined;
  }
  value = find_plan(settings, objects, key);
  if (value == NULL) goto done;
  if (Py_TYPE(value) == g_entry_type) {
    result = run((const Entry*)value, objects, &arguments);
  } else {
    result = value; /* Python continues with it */
    value = NULL;
  }
  goto done;

declined:
  result = Py_NotImplemented;
  Py_INCREF(result);
done:
  release_arguments(&arguments);
  Py_XDECREF(settings_key);
  Py_XDECREF(key);
  Py_XDECREF(value);
  return result;
}

static PyObject* call(PyObject* module, PyObject* const* objects, Py_ssize_t count) {
  (void)module;
  return run_call(objects, count, false);
}

static PyObject* call_in_operator(PyObject* module, PyObject* const* objects, Py_ssize_t count) {
  (void)module;
  return run_call(objects, count, true);
}

/* set_library(execute, last_error, plans, make_plan, fail): two addresses, then objects. */
static PyObject* set_library(PyObject* module, PyObject* args) {
  (void)module;
  unsigned long long execute, last_error;
  PyObject *plans, *make_plan, *fail;
  if (!PyArg_ParseTuple(args, "KKO!OO", &execute, &last_error, &PyDict_Type, &plans, &make_plan, &fail)) return NULL;
  Py_INCREF(plans);
  Py_INCREF(make_plan);
  Py_INCREF(fail);
  Py_XDECREF(g_plans);
  Py_XDECREF(g_make_plan);
  Py_XDECREF(g_fail);
  g_plans = plans;
  g_make_plan = make_plan;
  g_fail = fail;
  g_execute = (ExecuteFunction)(uintptr_t)execute;
  g_last_error = (LastErrorFunction)(uintptr_t)last_error;
  Py_RETURN_NONE;
}

/* set_numpy(ndarray, empty) */
static PyObject* set_numpy(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *type, *empty;
  if (!PyArg_ParseTuple(args, "OO", &type, &empty)) return NULL;
  Py_INCREF(type);
  Py_INCREF(empty);
  Py_XDECREF(g_numpy.type);
  Py_XDECREF(g_numpy.empty);
  g_numpy = (NumPy){type, empty};
  Py_RETURN_NONE;
}

/* set_torch(capsule of the exchange table, Tensor, Parameter, is_grad_enabled, num_modes, is_tracing, forward_ad,
 * increment_version): can this version of the table be used? Called once in a process, so nothing is given back. */
static PyObject* set_torch(PyObject* module, PyObject* args) {
  (void)module;
  Torch torch = {.exchange = NULL};
  PyObject* capsule;
  if (!PyArg_ParseTuple(args, "OOOOOOOO", &capsule, &torch.types[0], &torch.types[1], &torch.is_grad_enabled,
                        &torch.num_modes, &torch.is_tracing, &torch.forward_ad, &torch.increment_version))
    return NULL;
  torch.exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (torch.exchange == NULL) return NULL;
  if (torch.exchange->version.major != 1 || torch.exchange->version.minor < 2) Py_RETURN_FALSE;
  Py_INCREF(args); /* which holds them */
  g_torch = torch;
  Py_RETURN_TRUE;
}

static PyMethodDef g_methods[] = {
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL,
     "call(settings, *tensors): (o, final, checkpoint), NotImplemented where Python has to look at the tensors first, "
     "or what "
     "stands for such a call in the dict of plans."},
    {"call_in_operator", (PyCFunction)(void (*)(void))call_in_operator, METH_FASTCALL,
     "call(...) by an operator of torch: dispatch modes and traces have seen it."},
    {"remember", remember, METH_O, "Makes a plan the calling thread's last one."},
    {"last_plan", last_plan, METH_NOARGS, "The plan of the calling thread's last call, or None."},
    {"set_library", set_library, METH_VARARGS, NULL},
    {"set_numpy", set_numpy, METH_VARARGS, NULL},
    {"set_torch", set_torch, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef g_module = {.m_base = PyModuleDef_HEAD_INIT,
                                      .m_name = "deltarelay._core",
                                      .m_doc = "The fast way from Python to dr_execute.",
                                      .m_size = -1,
                                      .m_methods = g_methods};

PyMODINIT_FUNC PyInit__core(void) {
  g_key_name = PyUnicode_InternFromString("key");
  g_last_plan_name = PyUnicode_InternFromString("deltarelay.last_plan");
  if (g_key_name == NULL || g_last_plan_name == NULL) return NULL;
  PyObject* module = PyModule_Create(&g_module);
  if (module == NULL) return NULL;
  if (entry_add_type(module) != 0 || PyModule_AddIntConstant(module, "contract", DR_VERSION) != 0) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
