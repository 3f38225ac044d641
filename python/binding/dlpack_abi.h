/* The part of DLPack's ABI (1.3) that the binding uses. A framework publishes one table of C functions on its tensor
 * type, `__dlpack_c_exchange_api__`: views without ownership, allocation, results as Python objects and the current
 * stream. The binding needs no header and no particular version of the framework. */
#ifndef DELTARELAY_BINDING_DLPACK_ABI_H_
#define DELTARELAY_BINDING_DLPACK_ABI_H_

#include <stdint.h>

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_CUDA_HOST = 3, DLPACK_CUDA_MANAGED = 13 };
enum { DLPACK_INT = 0, DLPACK_UINT = 1, DLPACK_FLOAT = 2, DLPACK_BFLOAT = 4, DLPACK_BOOL = 6 };

typedef struct {
  uint32_t major, minor;
} DlpackVersion;

typedef struct {
  int32_t type, id;
} DlpackDevice;

typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} DlpackType;

typedef struct {
  void* data;
  DlpackDevice device;
  int32_t ndim;
  DlpackType dtype;
  int64_t* shape;
  int64_t* strides; /* elements */
  uint64_t byte_offset;
} DlpackTensor;

typedef struct DlpackManaged {
  DlpackVersion version;
  void* manager;
  void (*deleter)(struct DlpackManaged* self);
  uint64_t flags;
  DlpackTensor tensor;
} DlpackManaged;

typedef void (*DlpackSetError)(void* context, const char* kind, const char* message);

typedef struct {
  DlpackVersion version;
  void* previous;
  int (*allocate)(DlpackTensor* like, DlpackManaged** out, void* error_context, DlpackSetError set_error);
  int (*from_object)(void* object, DlpackManaged** out);
  int (*to_object)(DlpackManaged* tensor, void** out);
  int (*view)(void* object, DlpackTensor* out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
} DlpackExchange;

#endif
