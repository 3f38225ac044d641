/* The key of a plan in the cache: every fact of a call that could change its plan, and no pointer. */
#ifndef DELTARELAY_BINDING_KEY_H_
#define DELTARELAY_BINDING_KEY_H_

#include "arguments.h"

/* Flags in the last byte of the key of settings. */
enum {
  KEY_LATE_LENGTHS = 1, /* lengths are not read here */
  KEY_BUCKETS = 2       /* one plan of late lengths serves all token counts of a bucket */
};

/* Returns a bytes object: the key of the settings, then shapes, strides, types, devices and alignments of the tensors,
 * then the lengths if they are in host memory. If they are not, calls with similar token counts share a plan: the count
 * is rounded up to the end of its bucket. Returns NULL with an exception set, or without one if the lengths are not
 * contiguous. */
PyObject* key_of(PyObject* settings_key, const Arguments* arguments);

#endif
