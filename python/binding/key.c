#include "key.h"

#include <stdlib.h>
#include <string.h>

/* The library asks for 16 bytes at most, so that a better alignment is no other plan. */
static uint8_t alignment_of(const void* data) {
  const uintptr_t address = (uintptr_t)data;
  return (uint8_t)(address % 16 == 0 ? 16 : address & (~address + 1));
}

static const View* host_lengths(const Arguments* arguments) {
  const View* host = &arguments->views[ARG_HOST_OFFSETS];
  if (host->given) return host;
  const View* offsets = &arguments->views[ARG_SEQ_OFFSETS];
  return offsets->given && offsets->device.type == DLPACK_CPU ? offsets : NULL;
}

static size_t bytes_of(const View* list) { return (size_t)list->shape[0] * (list->dtype.bits / 8u); }

static char* put(char* at, const void* data, size_t bytes) {
  memcpy(at, data, bytes);
  return at + bytes;
}

enum { VIEW_BYTES = 12 + MAX_NDIM * 16 };

static char* put_view(char* at, int index, const View* view) {
  const uint8_t head[8] = {(uint8_t)index,
                           view->dtype.code,
                           view->dtype.bits,
                           (uint8_t)view->dtype.lanes,
                           (uint8_t)view->device.type,
                           (uint8_t)view->ndim,
                           alignment_of(view->data),
                           0};
  at = put(at, head, sizeof head);
  at = put(at, &view->device.id, sizeof view->device.id);
  at = put(at, view->shape, (size_t)view->ndim * sizeof(int64_t));
  return put(at, view->strides, (size_t)view->ndim * sizeof(int64_t));
}

PyObject* key_of(PyObject* settings_key, const Arguments* arguments) {
  const View* lengths = host_lengths(arguments);
  if (lengths != NULL && (lengths->ndim != 1 || lengths->device.type != DLPACK_CPU ||
                          (lengths->strides[0] != 1 && lengths->shape[0] > 1)))
    return NULL;
  char* settings;
  Py_ssize_t settings_bytes;
  if (PyBytes_AsStringAndSize(settings_key, &settings, &settings_bytes) != 0) return NULL;

  const size_t most = (size_t)settings_bytes + 1 + NUM_ARGS * VIEW_BYTES + (lengths != NULL ? bytes_of(lengths) : 0);
  char local[4096];
  char* start = most <= sizeof local ? local : malloc(most);
  if (start == NULL) return PyErr_NoMemory();
  char* at = put(start, settings, (size_t)settings_bytes);
  *at++ = (char)arguments->framework;
  for (int i = 0; i < NUM_ARGS; ++i)
    if (arguments->views[i].given) at = put_view(at, i, &arguments->views[i]);
  if (lengths != NULL) at = put(at, lengths->data, bytes_of(lengths));
  PyObject* key = PyBytes_FromStringAndSize(start, at - start);
  if (start != local) free(start);
  return key;
}
