/* The bytes that a plan is found by: every fact of a call that could change its plan, and no pointer. */
#ifndef DELTARELAY_BINDING_KEY_H_
#define DELTARELAY_BINDING_KEY_H_

#include "arguments.h"

/* A bytes object: the settings' own key, then shapes, strides, types, devices and alignments of the tensors, then the lengths
 * where they are in host memory. NULL with an exception set, or without one where the lengths are not contiguous. */
PyObject* key_of(PyObject* settings_key, const Arguments* arguments);

#endif
