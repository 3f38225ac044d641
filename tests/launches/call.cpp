#include "launches/call.h"

#include <algorithm>
#include <numeric>

namespace deltarelay::launches {
namespace {

int64_t bytes_of(int32_t dtype) {
  switch (dtype) {
    case DR_INT64:
      return 8;
    case DR_FP32:
    case DR_INT32:
      return 4;
    default:
      return 2;
  }
}

// Of the tensors of tokens: does the case read or write it?
bool has_rows(const cases::Case& c, Tensor tensor) {
  return tensor == Tensor::kO ? c.writes_o() : c.reads_rows(tensor);
}

cases::Case with_setting(const cases::Case& given, const Setting& setting) {
  cases::Case c = without_setting(given);
  c.device = "cuda:" + std::to_string(setting.device);
  c.backend = setting.backend;
  c.variant = setting.variant;
  c.math = setting.tf32 ? DR_MATH_TF32 : DR_MATH_DEFAULT;
  if (setting.late) {
    c.lengths_at = cases::LengthsAt::kExecute;
  } else {
    c.lengths_at = cases::LengthsAt::kPlan;
    c.bound_tokens = c.bound_seqs = 0;
  }
  return c;
}

std::string shape_text(dim3 shape) {
  return std::to_string(shape.x) + "," + std::to_string(shape.y) + "," + std::to_string(shape.z);
}

std::string stream_text(const void* stream) {
  return reinterpret_cast<uintptr_t>(stream) == PlannedCall::kStream ? "given" : "another";
}

std::string line_of(const Call& call, const std::vector<Region>& regions) {
  const Launch& launch = *call.launch;
  std::string line = "  launch " + launch.kernel->name + " device=" + std::to_string(call.device) +
                     " grid=" + shape_text(launch.grid) + " block=" + shape_text(launch.block) +
                     " cluster=" + std::to_string(launch.cluster) + " shared=" + std::to_string(launch.shared_bytes) +
                     " dependent=" + (launch.dependent ? "yes" : "no") + " stream=" + stream_text(call.stream);
  for (const Contents::Field& field : contents_of(launch, regions).fields) line += " " + field.name + "=" + field.text;
  return line + "\n";
}

std::string log_of(const cases::Case& c, const Setting& setting) {
  const PlannedCall call(c, setting);
  // Nobody expects the kernels of Hopper elsewhere.
  const bool hopper = kGpus[static_cast<size_t>(setting.device)].capability() == 90;
  if (call.status() == DR_UNSUPPORTED && setting.backend == "cuda-sm90" && !hopper) return {};
  std::string text = " on " + setting.text() + "\n";
  if (call.status() != DR_SUCCESS) return text + "  declined " + call.message() + "\n";
  text += "  plan " + call.plan_text() + " workspace=" + std::to_string(call.workspace_bytes()) + "\n";
  return text + log_of_execution(call);
}

}  // namespace

std::string Setting::text() const {
  std::string text = std::string(kGpus[static_cast<size_t>(device)].name) + " " + backend;
  if (!variant.empty()) text += " " + variant;
  if (tf32) text += " tf32";
  return text + (late ? " lengths=execute" : " lengths=plan") + (report ? " report=yes" : " report=no");
}

std::vector<Setting> settings_of(const cases::Case& c) {
  std::vector<Setting> ways = {{.backend = "cuda-sm90", .variant = "fused"},
                               {.backend = "cuda-sm90", .variant = "prepared"},
                               {.backend = "cuda-sm80"}};
  if (c.is_stage()) ways = {{.backend = "cuda-sm90"}, {.backend = "cuda-sm80"}};
  if (c.dtype == DR_FP32 && !c.is_stage()) ways.push_back({.backend = "cuda-sm80", .tf32 = true});
  std::vector<Setting> all;
  for (int device = 0; device < static_cast<int>(kGpus.size()); ++device)
    for (Setting setting : ways)
      for (const bool late : {false, true}) {
        if (late && c.batched) continue;
        for (const bool report : {false, true}) {
          setting.device = device;
          setting.late = late;
          setting.report = report;
          all.push_back(setting);
        }
      }
  return all;
}

cases::Case without_setting(const cases::Case& given) {
  cases::Case c = given;
  c.name.clear();
  c.device.clear();
  c.backend.clear();
  c.variant.clear();
  c.isa.clear();
  c.math = DR_MATH_DEFAULT;
  c.threads = 0;
  c.seed = 1;
  return c;
}

PlannedCall::PlannedCall(const cases::Case& given, const Setting& setting) : setting_(setting) {
  const cases::Case c = with_setting(given, setting);
  const cases::Request request(c);
  status_ = dr_plan_create(&request.problem, &request.options, &plan_);
  if (status_ != DR_SUCCESS) {
    message_ = dr_last_error();
    return;
  }
  dr_plan_workspace_bytes(plan_, &workspace_bytes_);
  dr_tensors_init(&tensors_);
  tensors_.num_tokens = c.num_tokens();
  tensors_.num_seqs = c.num_seqs();
  int64_t checkpoints = 0;
  for (const std::vector<int64_t>& positions : checkpoint_positions(c))
    checkpoints += static_cast<int64_t>(positions.size());
  place_rows(c, request.problem);
  place_pools(c, request.problem, checkpoints);
  place_lists(c, checkpoints);
  place_intermediates(c);
  regions_.push_back({"workspace", kWorkspace, workspace_bytes_});
}

PlannedCall::~PlannedCall() { dr_plan_destroy(plan_); }

// Each tensor has a terabyte of its own and begins at an odd multiple of its alignment.
uint64_t PlannedCall::place_of(Tensor tensor, int64_t alignment) {
  return (static_cast<uint64_t>(tensor) + 1) * (uint64_t{1} << 40) + static_cast<uint64_t>(alignment);
}

void PlannedCall::place(Tensor tensor, int64_t bytes, int64_t alignment) {
  const TensorEntry& entry = entry_of(tensor);
  const uint64_t begin = place_of(tensor, alignment);
  regions_.push_back({entry.name, begin, static_cast<uint64_t>(bytes)});
  set_pointer(tensors_, entry, reinterpret_cast<const void*>(begin));
}

void PlannedCall::place_rows(const cases::Case& c, const dr_problem& problem) {
  auto alignment_of = [&](const TensorLayout& of) {
    const int64_t promised = (problem.*of.layout).alignment_bytes;
    const int64_t bytes = promised != 0 ? promised : entry_of(of.tensor).alignment;
    return std::max(bytes, bytes_of(rows_of(c, of.tensor).dtype));
  };
  for (const TensorLayout& of : kTensorLayouts) {
    if (!has_rows(c, of.tensor)) continue;
    const cases::Rows rows = rows_of(c, of.tensor);
    place(of.tensor, extent(c, rows) * bytes_of(rows.dtype), alignment_of(of));
  }
  if (c.strides != cases::Strides::kPacked) return;
  // q, k and v are views of one tensor, which the log calls q. It begins where all three find what they are promised.
  int64_t alignment = 0;
  for (const TensorLayout& of : kTensorLayouts)
    if (of.tensor == Tensor::kQ || of.tensor == Tensor::kK || of.tensor == Tensor::kV)
      alignment = std::max(alignment, alignment_of(of));
  std::erase_if(regions_, [](const Region& region) { return region.name == "q"; });
  place(Tensor::kQ, 0, alignment);
  const cases::PackedRow row = packed_row(c);
  const int64_t bytes = bytes_of(c.dtype);
  const auto* const q = static_cast<const char*>(tensors_.q);
  const auto view = [&](Tensor tensor, int64_t at) { return has_rows(c, tensor) ? q + at * bytes : nullptr; };
  tensors_.q = view(Tensor::kQ, 0);
  tensors_.k = view(Tensor::kK, row.k);
  tensors_.v = view(Tensor::kV, row.v);
  const int64_t tokens = c.batched ? c.num_seqs() * c.lengths[0] : c.num_tokens();
  std::erase_if(regions_, [](const Region& region) { return region.name == "k" || region.name == "v"; });
  for (Region& region : regions_)
    if (region.name == "q") region.bytes = static_cast<uint64_t>(tokens * row.width * bytes);
}

void PlannedCall::place_pools(const cases::Case& c, const dr_problem& problem, int64_t checkpoints) {
  for (const TensorPool& of : kTensorPools) {
    const dr_state& state = problem.*of.state;
    if (state.use == DR_STATE_NONE) continue;
    const int64_t entries = of.tensor == Tensor::kCheckpoint ? checkpoints : c.num_seqs();
    const int64_t matrices = int64_t{c.heads_v} * c.dk * c.dv;
    const int64_t slots = state.use == DR_STATE_SLOTS ? state.num_slots : entries;
    const int64_t stride = state.stride_slot != 0 ? state.stride_slot : matrices;
    const int64_t bytes = bytes_of(state.dtype);
    auto alignment_of = [&](const dr_state& promised) {
      return std::max<int64_t>(promised.alignment_bytes != 0 ? promised.alignment_bytes : entry_of(of.tensor).alignment,
                               bytes);
    };
    const bool shared = c.in_place && of.tensor == Tensor::kInitial;
    const int64_t alignment = std::max(alignment_of(state), alignment_of(shared ? problem.final : state));
    place(of.tensor, slots > 0 ? ((slots - 1) * stride + matrices) * bytes : 0, alignment);
    if (state.use != DR_STATE_SLOTS) continue;
    const Tensor index = of.tensor == Tensor::kInitial ? Tensor::kInitialIndex
                         : of.tensor == Tensor::kFinal ? Tensor::kFinalIndex
                                                       : Tensor::kCheckpointIndex;
    place(index, entries * bytes_of(state.index_dtype), bytes_of(state.index_dtype));
  }
  if (!c.in_place) return;
  tensors_.final = const_cast<void*>(tensors_.initial);
  tensors_.final_index = tensors_.initial_index;
  std::erase_if(regions_, [](const Region& region) { return region.name == "final" || region.name == "final_index"; });
}

void PlannedCall::place_lists(const cases::Case& c, int64_t checkpoints) {
  const TensorSizes sizes = sizes_of(c, checkpoints);
  auto put = [&](Tensor tensor, int64_t element_bytes) {
    place(tensor, count_of(sizes, entry_of(tensor)) * element_bytes, element_bytes);
  };
  if (c.raw_gate() && c.a_log) put(Tensor::kALog, bytes_of(c.dtype_a_log));
  if (c.raw_gate() && c.dt_bias) put(Tensor::kDtBias, bytes_of(c.dtype_dt_bias));
  if (c.mask) put(Tensor::kHasInitial, 1);
  if (c.checkpoints == DR_CHECKPOINTS_LIST) {
    put(Tensor::kCheckpointOffsets, 4);
    put(Tensor::kCheckpointPositions, 4);
  }
  if (setting_.late) put(Tensor::kSeqOffsets, bytes_of(c.offsets_dtype));
  if (setting_.report) put(Tensor::kReport, 4);
}

void PlannedCall::place_intermediates(const cases::Case& c) {
  if (!c.is_stage()) return;
  dr_intermediates_init(&intermediates_);
  tensors_.intermediates = &intermediates_;
  TensorSizes sizes = cases::sizes_of(c);
  // A caller who does not know the lengths has room for as many states as the bounds allow.
  if (setting_.late && c.op != DR_CARRY && c.stage.chunk > 0)
    sizes.state_rows = std::min(sizes.tokens, sizes.tokens / c.stage.chunk + sizes.sequences);
  for (const TensorEntry& entry : kTensors) {
    if (((c.stage.given | c.stage.wanted) & bit_of(entry.tensor)) == 0) continue;
    const auto begin = place_of(entry.tensor, entry.alignment);
    const int64_t bytes = count_of(sizes, entry) * bytes_of(cases::dtype_of_intermediate(c, entry));
    regions_.push_back({entry.name, begin, static_cast<uint64_t>(bytes)});
    set_pointer(intermediates_, entry, reinterpret_cast<void*>(begin));
  }
}

std::string PlannedCall::plan_text() const {
  size_t needed = 0;
  dr_plan_describe(plan_, DR_DESCRIBE_SIGNATURE, nullptr, 0, &needed);
  std::string text(needed, '\0');
  dr_plan_describe(plan_, DR_DESCRIBE_SIGNATURE, text.data(), needed, nullptr);
  text.resize(needed == 0 ? 0 : needed - 1);
  return text;
}

dr_status PlannedCall::execute() const {
  return dr_execute(plan_, &tensors_, reinterpret_cast<void*>(kWorkspace), workspace_bytes_,
                    reinterpret_cast<void*>(kStream));
}

std::vector<cases::Case> random_cases(uint64_t count) {
  constexpr int64_t kCost = 20'000'000;  // tokens x HV x DK x DV: up to some 50 chunks of 4 heads
  std::vector<cases::Case> all;
  for (const char* backend : {"cuda-sm90", "cuda-sm80"})
    for (uint64_t seed = 1; seed <= count; ++seed) all.push_back(cases::random_case(seed, kCost, backend));
  for (uint64_t seed = 1; seed <= count; ++seed) all.push_back(cases::random_stage(seed, kCost, "cuda-sm80"));
  return all;
}

std::string log_of_execution(const PlannedCall& call) {
  const Recording recording;
  const dr_status status = call.execute();
  std::string text;
  for (const Call& made : recording.calls())
    if (made.launch) text += line_of(made, call.regions());
  if (status != DR_SUCCESS)
    text += std::string("  refused ") + dr_status_string(status) + ": " + dr_last_error() + "\n";
  return text;
}

std::string log_of(const cases::Case& given) {
  const cases::Case c = without_setting(given);
  std::string text = "case " + cases::print(c) + "\n";
  for (const Setting& setting : settings_of(c)) text += log_of(c, setting);
  return text;
}

std::string log_of_loading() {
  std::string text = "case loading\n";
  for (size_t device = 0; device < kGpus.size(); ++device) {
    text += std::string(" on ") + kGpus[device].name + "\n";
    for (const Kernel* kernel : all_kernels()) {
      const KernelState state = state_of(*kernel, static_cast<int>(device));
      if (!state.loaded) continue;
      text += "  loaded " + kernel->name + " shared=" + std::to_string(state.shared_bytes);
      text += " carveout=" + std::to_string(state.carveout) + "\n";
    }
  }
  return text;
}

}  // namespace deltarelay::launches
