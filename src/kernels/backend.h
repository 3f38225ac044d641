// What a backend is: a name, what it declines, the variants it offers, and functions that run the steps of a plan.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "deltarelay/deltarelay.h"
#include "kernels/rows.h"
#include "kernels/stages.h"
#include "kernels/step.h"
#include "kernels/variant.h"
#include "problem/problem.h"

namespace deltarelay {

// Options that concern the choice of a backend and a variant.
struct Request {
  const char* isa = nullptr;      // nullptr: not named
  const char* variant = nullptr;  // likewise
  int32_t math = DR_MATH_DEFAULT;
  int32_t num_columns = 0;  // > 0: a subset of value columns is asked for
  bool cut = false;         // segments are forced, or asked for in the manner of another system
  int32_t device_kind = DR_DEVICE_CPU;
  int32_t compute_capability = 0;
  int64_t unit_shared_bytes = 0;  // shared memory of one unit; 0: not known
  bool here = true;               // the device is this machine's: the plan is to run
};

// How fast a GPU is against the one on which costs were measured.
struct DeviceSpeed {
  int32_t tenths = 10;           // time of a chunk, by tensor throughput and clock of one multiprocessor
  int32_t portable_tenths = 10;  // the same of chains of small products, for which clocks count more
  bool measured = false;         // costs were measured on this device
  const char* measured_on = "";
};

// A step whose CTAs a backend is asked for.
struct SpreadRequest {
  const Problem& problem;
  const Variant& variant;
  int32_t units;      // multiprocessors
  int64_t sequences;  // of the call, or an upper bound
  RelayLine relay;    // of the rows of this step
  bool alike;         // are all rows known to have one length, and does the table travel with the launch?
};

struct Backend {
  const char* name;
  int32_t device_kind = DR_DEVICE_CPU;
  // Names that options.variant may have.
  std::span<const char* const> variant_names = {};
  // Variants that have costs of their own (dr_costs.variant). None: planned with the first costs of its kind of device.
  std::span<const char* const> cost_variants = {};
  // Those costs on a device; `index`: of cost_variants. Names are filled in already.
  void (*costs)(const dr_device&, const DeviceSpeed&, int32_t index, Rule, dr_costs&) = nullptr;

  // Empty when the backend serves the problem, else the reason why not: names the argument, what it takes, what it
  // found.
  std::string (*decline)(const Problem&, const Request&) = nullptr;
  // At least one for a request that is not declined, best first: a plan takes the one that it predicts to be fastest.
  // Where bits or workspace may not depend on the call, it takes the first.
  Variants (*variants)(const Problem&, const Request&) = nullptr;

  // Of a host backend, else nullptr.
  // Bytes that one worker needs, a multiple of kWorkspaceAlignment.
  size_t (*scratch_bytes)(const Problem&, const Variant&, int32_t value_tiles) = nullptr;
  // A walk: emits or summarizes the rows of the step's phase. Carry: all folds. Finish: what belongs to no row.
  void (*run)(const StageArgs&, const TableView&, const Step&, Executor&) = nullptr;

  // Of a device backend, else nullptr.
  // CTAs of a step that is launched, the table aside: fills in `ctas`, `ctas_stored`, `each` and `together`.
  void (*spread)(const SpreadRequest&, Step&) = nullptr;
  // Puts these steps onto the stream, in their order. Allocates nothing, waits for nothing. Throws
  // Error(DR_DEVICE_ERROR), as those below.
  void (*enqueue)(const DeviceCall&, std::span<const Step>) = nullptr;
  // Loads every kernel that `enqueue` may launch onto this device, which is current, so that no execution has to. A
  // backend with kernels of its own for each shape of a problem loads here what they share.
  void (*load)(int32_t device) = nullptr;
  // Number of the problem's shape, below kMostShapes, and loading the kernels of that shape onto the current device.
  // nullptr: `load` is all.
  static constexpr int32_t kMostShapes = 63;
  int32_t (*shape)(const Problem&) = nullptr;
  void (*load_shape)(const Problem&) = nullptr;
};

extern const Backend kReferenceBackend;
extern const Backend kCpuBackend;
extern const Backend kCudaSm90Backend;  // without CUDA in the build: to plan with, not to run
extern const Backend kCudaSm80Backend;  // the same

// Instruction sets of the cpu backend on this machine, best first.
int32_t cpu_isa_count();
const char* cpu_isa_name(int32_t index);
int32_t cpu_isa_find(const char* name);  // -1: not on this machine; nullptr: 0, the best

// Facts of this machine's CPU, asked afresh.
void cpu_describe(dr_device* device);

// Lets the calling thread run on every CPU that the main thread of the process may run on, whatever thread made it.
void cpu_run_anywhere();

}  // namespace deltarelay
