/* Python's limited API of 3.10, and the buffer protocol, which joined it in 3.11 with a layout unchanged since 3.3. */
#ifndef DELTARELAY_BINDING_PYTHON_API_H_
#define DELTARELAY_BINDING_PYTHON_API_H_

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if Py_LIMITED_API + 0 < 0x030B0000
typedef struct {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
} Py_buffer;
#define PyBUF_FORMAT 0x0004
#define PyBUF_STRIDES 0x0018
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject* object, Py_buffer* view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer* view);
#endif

#endif
