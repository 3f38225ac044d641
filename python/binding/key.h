/* The bytes that a plan is found by: every fact of a call that could change its plan, and no pointer. */
#ifndef DELTARELAY_BINDING_KEY_H_
#define DELTARELAY_BINDING_KEY_H_

#include "arguments.h"

/* The last byte of a settings' key. */
enum {
  KEY_LATE_LENGTHS = 1, /* lengths are read where they are, never here */
  KEY_BUCKETS = 2       /* plans of late lengths serve all numbers of tokens of a bucket */
};

/* A bytes object: the settings' own key, then shapes, strides, types, devices and alignments of the tensors, then the lengths
 * where they are in host memory. Where they are not, calls of about as many tokens have one plan: the number of tokens is rounded
 * up to the end of its bucket. NULL with an exception set, or without one where the lengths are not contiguous. */
PyObject* key_of(PyObject* settings_key, const Arguments* arguments);

#endif
