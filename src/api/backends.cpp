// Lists the backends and checks whether one of them serves a problem.
#include "plan/backends.h"

#include <string>

#include "api/last_error.h"
#include "plan/options.h"
#include "problem/validate.h"

namespace deltarelay {
namespace {

void check_backend(int32_t index, const dr_problem* request, const dr_options* options_request) {
  if (index < 0 || index >= backend_count()) {
    fail_invalid("index", "0 to " + std::to_string(backend_count() - 1), std::to_string(index));
  }
  require_pointer("problem", request);
  const Backend& backend = *backend_at(index);
  const Problem problem = validate(*request);
  const Options options = validate_options(options_request, problem, backend.name);
  const std::string reason = backend.decline(problem, request_of(options));
  if (!reason.empty()) fail_unsupported(std::string(backend.name) + ": " + reason);
}

}  // namespace
}  // namespace deltarelay

using namespace deltarelay;

int32_t dr_backend_count(void) { return backend_count(); }

const char* dr_backend_name(int32_t index) {
  return index >= 0 && index < backend_count() ? backend_at(index)->name : nullptr;
}

dr_status dr_backend_check(int32_t index, const dr_problem* problem, const dr_options* options) {
  return as_status([&] { check_backend(index, problem, options); });
}

int32_t dr_isa_count(void) { return cpu_isa_count(); }

const char* dr_isa_name(int32_t index) { return index >= 0 && index < cpu_isa_count() ? cpu_isa_name(index) : nullptr; }
