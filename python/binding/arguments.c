#include "arguments.h"

#include <string.h>

Torch g_torch;
NumPy g_numpy;

/* Every call looks up attributes, so their names are created once. */
static bool intern(PyObject** name, const char* text) {
  return *name != NULL || (*name = PyUnicode_InternFromString(text)) != NULL;
}

static PyObject* attribute(PyObject* object, PyObject** name, const char* text) {
  return intern(name, text) ? PyObject_GetAttr(object, *name) : NULL;
}

/* A framework refuses to show a tensor's memory: Python then says why. What it did not mean as an answer (an interrupt,
 * no memory) stays set. */
static ReadResult refused(void) {
  if (PyErr_Occurred() != NULL &&
      (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)))
    return READ_FAILED;
  PyErr_Clear();
  return READ_DECLINED;
}

/* Returns 1 for true, 0 for false, -1 if an exception is set. */
static int truth_of(PyObject* value) {
  if (value == NULL) return -1;
  const int truth = value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
  Py_DECREF(value);
  return truth;
}

/* If gradients are off, a tensor that requires them is accepted: parameters of a model do. */
static int requires_grad(PyObject* tensor) {
  static PyObject* name;
  const int grad = truth_of(attribute(tensor, &name, "requires_grad"));
  return grad == 1 ? truth_of(PyObject_CallNoArgs(g_torch.is_grad_enabled)) : grad;
}

/* Is negation pending? True for imaginary parts of conjugates. */
static int is_negated(PyObject* tensor) {
  static PyObject* name;
  return intern(&name, "is_neg") ? truth_of(PyObject_CallMethodObjArgs(tensor, name, NULL)) : -1;
}

/* Does anyone watch what torch computes, who would not see a call that only reads memory: a dispatch mode
 * (FakeTensorMode, make_fx, a flop counter) or torch.jit.trace? */
static int is_watched(void) {
  const int modes = truth_of(PyObject_CallNoArgs(g_torch.num_modes));
  return modes != 0 ? modes : truth_of(PyObject_CallNoArgs(g_torch.is_tracing));
}

/* Tensors may then have tangents, which only Python can see. */
static int in_forward_ad(void) {
  static PyObject* name;
  PyObject* value = attribute(g_torch.forward_ad, &name, "_current_level");
  if (value == NULL) return -1;
  const long level = PyLong_AsLong(value);
  Py_DECREF(value);
  if (level == -1 && PyErr_Occurred()) return -1;
  return level >= 0;
}

static ReadResult check_torch(bool in_operator) {
  int differs = in_operator ? 0 : is_watched();
  if (differs == 0) differs = in_forward_ad();
  return differs == 0 ? READ_DONE : differs > 0 ? READ_DECLINED : READ_FAILED;
}

static bool copy_shape(View* view, int32_t ndim, const int64_t* shape) {
  if (ndim > MAX_NDIM) return false;
  view->ndim = ndim;
  for (int32_t axis = 0; axis < ndim; ++axis) view->shape[axis] = shape[axis];
  return true;
}

static bool is_empty(const View* view) {
  for (int32_t axis = 0; axis < view->ndim; ++axis)
    if (view->shape[axis] == 0) return true;
  return false;
}

static ReadResult read_torch(PyObject* object, View* view) {
  const int grad = requires_grad(object);
  if (grad != 0) return grad < 0 ? READ_FAILED : READ_DECLINED;
  const int negated = is_negated(object);
  if (negated != 0) return negated < 0 ? READ_FAILED : READ_DECLINED;
  DlpackTensor tensor;
  if (g_torch.exchange->view(object, &tensor) != 0) return refused(); /* sparse, meta, transformed */
  if (!copy_shape(view, tensor.ndim, tensor.shape)) return READ_DECLINED;
  int64_t contiguous = 1;
  for (int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
    view->strides[axis] = tensor.strides != NULL ? tensor.strides[axis] : contiguous;
    contiguous *= tensor.shape[axis];
  }
  if (tensor.data == NULL && !is_empty(view)) return READ_DECLINED; /* fake, functional or batched */
  view->data = tensor.data == NULL ? NULL : (char*)tensor.data + tensor.byte_offset;
  view->device = tensor.device;
  if (view->device.type == DLPACK_CUDA_HOST) view->device = (DlpackDevice){DLPACK_CPU, 0};
  if (view->device.type == DLPACK_CUDA_MANAGED) view->device.type = DLPACK_CUDA;
  view->dtype = tensor.dtype;
  return READ_DONE;
}

static DlpackType type_of_format(const char* format, Py_ssize_t size) {
  DlpackType type = {0, (uint8_t)(8 * size), 1};
  if (format == NULL) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return (DlpackType){255, 0, 1};
  if (strchr("efd", *format) != NULL)
    type.code = DLPACK_FLOAT;
  else if (strchr("bhilqn", *format) != NULL)
    type.code = DLPACK_INT;
  else if (strchr("BHILQN", *format) != NULL)
    type.code = DLPACK_UINT;
  else if (*format == '?')
    type.code = DLPACK_BOOL;
  else
    return (DlpackType){255, 0, 1};
  return type;
}

static ReadResult read_numpy(PyObject* object, bool written, View* view, Arguments* arguments) {
  Py_buffer* buffer = &arguments->buffers[arguments->num_buffers];
  if (PyObject_GetBuffer(object, buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0)
    return refused(); /* a type without a letter in the buffer protocol, such as bfloat16 of ml_dtypes */
  ++arguments->num_buffers;
  if (written && buffer->readonly) return READ_DECLINED;
  view->dtype = type_of_format(buffer->format, buffer->itemsize);
  if (view->dtype.code == 255 || buffer->ndim > MAX_NDIM) return READ_DECLINED;
  view->ndim = buffer->ndim;
  for (int32_t axis = 0; axis < buffer->ndim; ++axis) {
    view->shape[axis] = buffer->shape[axis];
    if (buffer->strides[axis] % buffer->itemsize != 0) return READ_DECLINED;
    view->strides[axis] = buffer->strides[axis] / buffer->itemsize;
  }
  view->data = buffer->buf;
  view->device = (DlpackDevice){DLPACK_CPU, 0};
  return READ_DONE;
}

static Framework framework_of(PyObject* object) {
  PyObject* type = (PyObject*)Py_TYPE(object);
  if (type == g_torch.types[0] || type == g_torch.types[1]) return FRAMEWORK_TORCH;
  if (type == g_numpy.type) return FRAMEWORK_NUMPY;
  return FRAMEWORK_NONE;
}

bool is_written(int argument) {
  return argument == ARG_O || argument == ARG_FINAL || argument == ARG_CHECKPOINT || argument == ARG_REPORT;
}

ReadResult read_arguments(PyObject* const* objects, bool in_operator, Arguments* arguments) {
  arguments->num_buffers = 0;
  arguments->framework = framework_of(objects[ARG_Q]);
  if (arguments->framework == FRAMEWORK_TORCH) {
    const ReadResult result = check_torch(in_operator);
    if (result != READ_DONE) return result;
  }
  for (int i = 0; i < NUM_ARGS; ++i) {
    View* view = &arguments->views[i];
    view->given = objects[i] != Py_None;
    view->data = NULL;
    if (!view->given) continue;
    const Framework framework = framework_of(objects[i]);
    if (framework == FRAMEWORK_NONE) return READ_DECLINED;
    if (framework != arguments->framework && i != ARG_HOST_OFFSETS) return READ_DECLINED;
    const ReadResult result = framework == FRAMEWORK_TORCH ? read_torch(objects[i], view)
                                                           : read_numpy(objects[i], is_written(i), view, arguments);
    if (result != READ_DONE) return result;
  }
  return READ_DONE;
}

void release_arguments(Arguments* arguments) {
  for (int i = 0; i < arguments->num_buffers; ++i) PyBuffer_Release(&arguments->buffers[i]);
  arguments->num_buffers = 0;
}
