#include "key.h"

#include <stdlib.h>
#include <string.h>

/* The library needs 16 bytes at most, so a larger alignment gives the same plan. */
static uint8_t alignment_of(const void* data) {
  const uintptr_t address = (uintptr_t)data;
  return (uint8_t)(address % 16 == 0 ? 16 : address & (~address + 1));
}

static const View* host_lengths(const Arguments* arguments, uint8_t flags) {
  const View* host = &arguments->views[ARG_HOST_OFFSETS];
  if (host->given) return host;
  const View* offsets = &arguments->views[ARG_SEQ_OFFSETS];
  return offsets->given && offsets->device.type == DLPACK_CPU && !(flags & KEY_LATE_LENGTHS) ? offsets : NULL;
}

/* Eight buckets per doubling, none shorter than 64 tokens. `bucket_end` in _plans.py is the same function. */
static int64_t bucket_end(int64_t tokens) {
  int64_t step = 64;
  while (16 * step <= tokens) step *= 2;
  return (tokens + step - 1) / step * step;
}

static size_t bytes_of(const View* list) { return (size_t)list->shape[0] * (list->dtype.bits / 8u); }

static char* put(char* at, const void* data, size_t bytes) {
  if (bytes > 0) memcpy(at, data, bytes); /* lists may be empty, without memory */
  return at + bytes;
}

enum { VIEW_BYTES = 12 + MAX_NDIM * 16 };

static bool has_token_rows(int index) { return index <= ARG_BETA || index == ARG_O; }

/* The axis whose length calls of one plan may change, and the length that all tensors of a call have there. */
typedef struct {
  int32_t axis; /* -1: none */
  int64_t length;
} TokenAxis;

/* The length is rounded up only if it is that of q: a tensor of another length never finds a plan that is cached for
 * its bucket. Below 0 no length can be. */
static int64_t token_key(const TokenAxis* tokens, int64_t length) {
  return length == tokens->length ? bucket_end(length) : -1 - length;
}

/* The stride of an axis with one index is arbitrary. It is no stride of the key either: 0 is that of an axis on which
 * all rows are one, and lengths 1 and 2 may be of one bucket. */
static int64_t stride_key(const View* view, int32_t axis) {
  return view->shape[axis] == 1 ? INT64_MIN : view->strides[axis];
}

static char* put_view(char* at, int index, const View* view, const TokenAxis* tokens) {
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
  const int32_t token_axis = has_token_rows(index) ? tokens->axis : -1;
  for (int32_t axis = 0; axis < view->ndim; ++axis) {
    const int64_t length = axis == token_axis ? token_key(tokens, view->shape[axis]) : view->shape[axis];
    const int64_t stride = stride_key(view, axis);
    at = put(at, &length, sizeof length);
    at = put(at, &stride, sizeof stride);
  }
  return at;
}

PyObject* key_of(PyObject* settings_key, const Arguments* arguments) {
  char* settings;
  Py_ssize_t settings_bytes;
  if (PyBytes_AsStringAndSize(settings_key, &settings, &settings_bytes) != 0) return NULL;
  const uint8_t flags = (uint8_t)settings[settings_bytes - 1];
  const View* lengths = host_lengths(arguments, flags);
  if (lengths != NULL &&
      (lengths->ndim != 1 || lengths->device.type != DLPACK_CPU || (lengths->strides[0] != 1 && lengths->shape[0] > 1)))
    return NULL;
  const bool late = arguments->views[ARG_SEQ_OFFSETS].given && lengths == NULL;
  const View* q = &arguments->views[ARG_Q];
  TokenAxis tokens = {-1, 0};
  if (late && (flags & KEY_BUCKETS) && q->given && q->ndim >= 3)
    tokens = (TokenAxis){q->ndim - 3, q->shape[q->ndim - 3]};

  const size_t most = (size_t)settings_bytes + 1 + NUM_ARGS * VIEW_BYTES + (lengths != NULL ? bytes_of(lengths) : 0);
  char local[4096];
  char* start = most <= sizeof local ? local : malloc(most);
  if (start == NULL) return PyErr_NoMemory();
  char* at = put(start, settings, (size_t)settings_bytes);
  *at++ = (char)arguments->framework;
  for (int i = 0; i < NUM_ARGS; ++i)
    if (arguments->views[i].given) at = put_view(at, i, &arguments->views[i], &tokens);
  if (lengths != NULL) at = put(at, lengths->data, bytes_of(lengths));
  PyObject* key = PyBytes_FromStringAndSize(start, at - start);
  if (start != local) free(start);
  return key;
}
