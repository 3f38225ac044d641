// Size-first structures: how a caller that was compiled with another version of the header is served.
#pragma once
#include <cstddef>

namespace deltarelay {

// A structure that the caller filled. One that is smaller than `known` lacks fields that would be read. A larger one comes
// from a newer header: it is taken while all the bytes that this library does not know are zero, which is their default.
// Throws Error(DR_INVALID). `argument` is the name of the structure.
void check_input_size(const char* argument, const void* structure, size_t known);

// A structure that the library fills: at least `known` bytes, so that every field has room. Throws Error(DR_INVALID).
void check_output_size(const char* argument, const void* structure, size_t known);

// Fills such a structure: `known` bytes from `value`, the rest zero; the size stays what the caller stated.
void write_output(void* structure, const void* value, size_t known);

}  // namespace deltarelay
