// The border of the library: exceptions end here and become a status and a message of the calling thread.
#pragma once
#include <new>
#include <string_view>

#include "problem/status.h"
#include "run/float_environment.h"

namespace deltarelay {

// Message of the last failure on this thread. Fixed storage, so that reporting works when memory has run out.
void clear_last_error() noexcept;
void set_last_error(std::string_view message) noexcept;
const char* last_error() noexcept;

// Runs the body of one entry point, with the library's own rounding.
template <typename Body>
dr_status as_status(Body&& body) noexcept {
  const FloatEnvironment not_the_callers;
  clear_last_error();
  try {
    body();
    return DR_SUCCESS;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_last_error("host memory: expected enough for this call, found none left; free memory or use a smaller problem");
    return DR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return DR_INTERNAL;
  } catch (...) {
    set_last_error("an exception of unknown type");
    return DR_INTERNAL;
  }
}

// Throws if an argument that must not be NULL is NULL.
inline void require_pointer(const char* argument, const void* pointer) {
  if (pointer == nullptr) fail_invalid(argument, "a pointer", "NULL");
}

}  // namespace deltarelay
