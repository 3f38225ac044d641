#include "entry.h"

#include <string.h>

PyTypeObject* g_entry_type;

static void set_error(void* context, const char* kind, const char* message) {
  (void)context;
  (void)kind;
  PyErr_SetString(PyExc_RuntimeError, message);
}

DlpackManaged* allocate_managed(const Output* output, DlpackDevice device, void** data) {
  int64_t shape[MAX_NDIM];
  memcpy(shape, output->shape, sizeof shape);
  DlpackTensor like = {NULL, device, output->ndim, output->dtype, shape, NULL, 0};
  DlpackManaged* managed = NULL;
  if (g_torch.exchange->allocate(&like, &managed, NULL, set_error) != 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "torch could not allocate an output");
    return NULL;
  }
  *data = managed->tensor.data == NULL ? NULL : (char*)managed->tensor.data + managed->tensor.byte_offset;
  return managed;
}

static PyObject* allocate_torch(const Output* output, DlpackDevice device, void** data) {
  DlpackManaged* managed = allocate_managed(output, device, data);
  void* object = NULL;
  if (managed == NULL) return NULL;
  if (g_torch.exchange->to_object(managed, &object) == 0) return object;
  /* Whether torch has taken the memory by then is not said: once too often would be worse than a leak. */
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "torch could not make a tensor of an output");
  return NULL;
}

static PyObject* allocate_numpy(const Output* output, void** data) {
  PyObject* array = PyObject_CallFunctionObjArgs(g_numpy.empty, output->numpy_shape, output->numpy_dtype, NULL);
  if (array == NULL) return NULL;
  Py_buffer buffer;
  if (PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES) != 0) {
    Py_DECREF(array);
    return NULL;
  }
  *data = buffer.buf;
  PyBuffer_Release(&buffer); /* the array keeps its memory */
  return array;
}

PyObject* allocate(Framework framework, const Output* output, DlpackDevice device, void** data) {
  return framework == FRAMEWORK_TORCH ? allocate_torch(output, device, data) : allocate_numpy(output, data);
}

PyObject* allocate_like(Framework framework, const Output* output, const View* view, DlpackDevice device, void** data) {
  if (memcmp(view->shape, output->shape, (size_t)output->ndim * sizeof(int64_t)) == 0)
    return allocate(framework, output, device, data);
  Output own = *output;
  memcpy(own.shape, view->shape, sizeof own.shape);
  if (framework == FRAMEWORK_TORCH) return allocate(framework, &own, device, data);
  own.numpy_shape = PyTuple_New(own.ndim);
  if (own.numpy_shape == NULL) return NULL;
  PyObject* object = NULL;
  for (int32_t axis = 0; axis < own.ndim; ++axis) {
    PyObject* length = PyLong_FromLongLong(own.shape[axis]);
    if (length == NULL || PyTuple_SetItem(own.numpy_shape, axis, length) != 0) goto done;
  }
  object = allocate(framework, &own, device, data);
done:
  Py_DECREF(own.numpy_shape);
  return object;
}

static int read_output(PyObject* item, Output* output) {
  int code, bits;
  if (!PyArg_ParseTuple(item, "iiiO!O", &output->argument, &code, &bits, &PyTuple_Type, &output->numpy_shape,
                        &output->numpy_dtype))
    return -1;
  const Py_ssize_t ndim = PyTuple_Size(output->numpy_shape);
  if (ndim > MAX_NDIM) {
    PyErr_SetString(PyExc_ValueError, "Entry: an output has too many axes");
    return -1;
  }
  output->dtype = (DlpackType){(uint8_t)code, (uint8_t)bits, 1};
  output->ndim = (int32_t)ndim;
  for (Py_ssize_t axis = 0; axis < ndim; ++axis) {
    output->shape[axis] = PyLong_AsLongLong(PyTuple_GetItem(output->numpy_shape, axis));
    if (output->shape[axis] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

/* Entry(plan, handle, workspace_bytes, (device type, id), pointers, late, outputs). An output is (argument, type code,
 * bits, shape, dtype for numpy.empty). */
static PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  (void)keywords;
  PyObject *plan, *outputs;
  unsigned long long handle;
  Py_ssize_t workspace_bytes;
  int device_type, device_id;
  unsigned int pointers;
  int late;
  if (!PyArg_ParseTuple(args, "OKn(ii)IpO!", &plan, &handle, &workspace_bytes, &device_type, &device_id, &pointers,
                        &late, &PyTuple_Type, &outputs))
    return NULL;
  const Py_ssize_t count = PyTuple_Size(outputs);
  if (count > MAX_OUTPUTS) {
    PyErr_SetString(PyExc_ValueError, "Entry: too many outputs");
    return NULL;
  }
  allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Entry* self = (Entry*)make(type, 0);
  if (self == NULL) return NULL;
  self->handle = (const dr_plan*)(uintptr_t)handle;
  self->workspace_bytes = (size_t)workspace_bytes;
  self->device = (DlpackDevice){device_type, device_id};
  self->pointers = pointers;
  self->late = late != 0;
  Py_INCREF(plan);
  self->plan = plan;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Output* output = &self->outputs[i];
    if (read_output(PyTuple_GetItem(outputs, i), output) != 0) {
      Py_DECREF(self);
      return NULL;
    }
    Py_INCREF(output->numpy_shape);
    Py_INCREF(output->numpy_dtype);
    ++self->num_outputs;
  }
  return (PyObject*)self;
}

static void entry_dealloc(PyObject* object) {
  Entry* self = (Entry*)object;
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(self->plan);
  for (int i = 0; i < self->num_outputs; ++i) {
    Py_DECREF(self->outputs[i].numpy_shape);
    Py_DECREF(self->outputs[i].numpy_dtype);
  }
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(object);
  Py_DECREF(type);
}

static PyObject* entry_plan(PyObject* object, void* closure) {
  (void)closure;
  PyObject* plan = ((Entry*)object)->plan;
  Py_INCREF(plan);
  return plan;
}

static PyObject* entry_take_used(PyObject* object, PyObject* unused) {
  (void)unused;
  Entry* self = (Entry*)object;
  const bool used = self->used;
  self->used = false;
  return PyBool_FromLong(used);
}

static PyGetSetDef g_getters[] = {{"plan", entry_plan, NULL, "The plan that this entry runs.", NULL},
                                  {NULL, NULL, NULL, NULL, NULL}};
static PyMethodDef g_methods[] = {
    {"take_used", entry_take_used, METH_NOARGS, "Whether the entry was found since this was last asked."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot g_slots[] = {
    {Py_tp_new, entry_new},     {Py_tp_dealloc, entry_dealloc},         {Py_tp_getset, g_getters},
    {Py_tp_methods, g_methods}, {Py_tp_doc, "What is kept of a plan."}, {0, NULL}};
static PyType_Spec g_spec = {"deltarelay._core.Entry", sizeof(Entry), 0, Py_TPFLAGS_DEFAULT, g_slots};

int entry_add_type(PyObject* module) {
  PyObject* type = PyType_FromSpec(&g_spec);
  if (type == NULL) return -1;
  g_entry_type = (PyTypeObject*)type;
  Py_INCREF(type); /* g_entry_type keeps it */
  if (PyModule_AddObject(module, "Entry", type) == 0) return 0;
  Py_DECREF(type);
  return -1;
}
