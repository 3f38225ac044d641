// DeltaRelay for C++20: RAII owners of the handles of deltarelay.h, and exceptions instead of statuses. The structures
// are those of the C header, so a caller can set every field directly.
//
//     deltarelay::Problem problem(DR_KDA);
//     problem.batched(1, 65536).heads(4, 4).widths(128, 128).types(DR_BF16).with_final(DR_STATE_VALUE_MAJOR);
//     const deltarelay::Plan plan(problem);
//     deltarelay::Workspace workspace(plan.workspace_bytes());
//     plan.execute(tensors, workspace);
//
// Compiled without exceptions (-fno-exceptions), the same classes keep or return statuses, and nothing throws:
//
//     const deltarelay::Plan plan(problem);                          plan.status(): why there is none
//     deltarelay::Workspace workspace(plan.workspace_bytes());       0 without a plan
//     if (plan.execute(tensors, workspace) != DR_SUCCESS)            refused without a plan or memory
//       puts(dr_last_error());
//     dr_device gpu;
//     const dr_status found = deltarelay::find_device("h200", &gpu);
//
// dr_last_error() has the words of the last call alone, so ask a plan for its status before the next call. `Exception`
// is not there. `describe` gives "" and `summary` zeros if they fail. A std::string that gets no memory ends the
// program.
#ifndef DELTARELAY_DELTARELAY_HPP_
#define DELTARELAY_DELTARELAY_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

#include "deltarelay/deltarelay.h"

namespace deltarelay {
// Users compile this wrapper; the library does not. The inline namespace keeps the symbols of both apart, and those of
// files with and without exceptions in one program.
#if defined(__cpp_exceptions)
inline namespace wrapper {

// Thrown when a call fails. what() names the argument, what was expected and what was found.
class Exception : public std::runtime_error {
 public:
  Exception(dr_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  dr_status status() const noexcept { return status_; }

 private:
  dr_status status_;
};

// Throws Exception with the message of the last call on this thread, unless `status` is DR_SUCCESS.
inline void check(dr_status status) {
  if (status != DR_SUCCESS) throw Exception(status, dr_last_error());
}
#else
inline namespace wrapper_of_statuses {

// Gives the status back.
[[nodiscard]] inline dr_status check(dr_status status) noexcept { return status; }
#endif

// A dr_problem. Each function sets fields that belong together; all fields are public.
struct Problem : dr_problem {
  explicit Problem(int32_t which_rule = 0) noexcept : dr_problem() {
    dr_problem_init(this);
    rule = which_rule;
  }

  // Packed tensors: sequence n owns rows [offsets[n], offsets[n+1]). The offsets are not copied: they must live until
  // the plan is made. Pass `tokens`, the number of rows, if rows follow the last sequence.
  Problem& packed(std::span<const int64_t> offsets, int64_t tokens = -1) {
    return set_packed(offsets.data(), offsets.size(), DR_INT64,
                      tokens >= 0 || offsets.empty() ? tokens : offsets.back());
  }
  Problem& packed(std::span<const int32_t> offsets, int64_t tokens = -1) {
    return set_packed(offsets.data(), offsets.size(), DR_INT32,
                      tokens >= 0 || offsets.empty() ? tokens : offsets.back());
  }
  // Packed tensors whose lengths come with each execution. Both counts are upper bounds.
  Problem& packed_later(int64_t most_sequences, int64_t most_tokens, int32_t offsets_dtype = DR_INT32) noexcept {
    num_seqs = most_sequences;
    num_tokens = most_tokens;
    seq_len = 0;
    seq_offsets = nullptr;
    seq_offsets_dtype = offsets_dtype;
    return *this;
  }
  // Tensors of shape [sequences, length, ...].
  Problem& batched(int64_t sequences, int64_t length) noexcept {
    num_seqs = sequences;
    num_tokens = 0;
    seq_len = length;
    seq_offsets = nullptr;
    return *this;
  }

  Problem& heads(int32_t query_key, int32_t value) noexcept {
    heads_qk = query_key;
    heads_v = value;
    return *this;
  }
  Problem& widths(int32_t key, int32_t value) noexcept {
    dk = key;
    dv = value;
    return *this;
  }
  // Types of q, k and v (`data`), of the gate, beta and the output. 0 means the type of the data.
  Problem& types(int32_t data, int32_t gate = 0, int32_t beta = 0, int32_t output = 0) noexcept {
    dtype = data;
    dtype_gate = gate;
    dtype_beta = beta;
    dtype_o = output;
    return *this;
  }
  Problem& scaled_by(float factor) noexcept {
    scale_given = 1;
    scale = factor;
    return *this;
  }
  Problem& with_initial(int32_t layout, int32_t state_dtype = DR_FP32, int32_t use = DR_STATE_ROWS) noexcept {
    initial.use = use;
    initial.layout = layout;
    initial.dtype = state_dtype;
    return *this;
  }
  Problem& with_final(int32_t layout, int32_t state_dtype = DR_FP32, int32_t use = DR_STATE_ROWS) noexcept {
    this->final.use = use;
    this->final.layout = layout;
    this->final.dtype = state_dtype;
    return *this;
  }

 private:
  Problem& set_packed(const void* offsets, size_t count, int32_t offsets_dtype, int64_t tokens) {
#if defined(__cpp_exceptions)
    if (count < 2) {
      throw Exception(DR_INVALID, "offsets: expected at least 2 entries, found " + std::to_string(count));
    }
#endif  // else the plan refuses num_seqs
    num_seqs = static_cast<int64_t>(count) - 1;
    num_tokens = tokens;
    seq_len = 0;
    seq_offsets = offsets;
    seq_offsets_dtype = offsets_dtype;
    return *this;
  }
};

// A dr_options with its defaults set.
struct Options : dr_options {
  Options() noexcept : dr_options() { dr_options_init(this); }

  // The string is not copied: it must live until the plan is made.
  Options& on_backend(const char* name) noexcept {
    backend = name;
    return *this;
  }
  Options& with_threads(int32_t count) noexcept {
    threads = count;
    return *this;
  }
  Options& whole() noexcept { return set_segments(DR_SEGMENTS_OFF, 0); }
  Options& in_segments(int64_t count) noexcept { return set_segments(DR_SEGMENTS_COUNT, count); }
  Options& in_segments_of(int64_t tokens) noexcept { return set_segments(DR_SEGMENTS_LENGTH, tokens); }
  // Allows history below this log-decay (natural logarithm) to be dropped. 0 means -16, the library's default.
  Options& with_truncated_carry(float log_decay = 0.0f) noexcept {
    carry = DR_CARRY_TRUNCATED;
    carry_log_decay = log_decay;
    return *this;
  }

 private:
  Options& set_segments(int32_t how, int64_t value) noexcept {
    segments = how;
    segment_value = value;
    return *this;
  }
};

// A dr_tensors with every pointer NULL.
struct Tensors : dr_tensors {
  Tensors() noexcept : dr_tensors() { dr_tensors_init(this); }
};

// Scratch memory of the host with the alignment that dr_execute needs.
class Workspace {
 public:
  static constexpr size_t kAlignment = 256;

  Workspace() = default;
#if defined(__cpp_exceptions)
  explicit Workspace(size_t bytes) : bytes_(bytes) {
    if (bytes != 0) memory_.reset(::operator new (bytes, std::align_val_t{kAlignment}));
  }
#else
  // Without memory the workspace has no bytes, and its status is DR_OUT_OF_MEMORY.
  explicit Workspace(size_t bytes) noexcept {
    if (bytes == 0) return;
    memory_.reset(::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow));
    if (memory_ != nullptr) {
      bytes_ = bytes;
    } else {
      status_ = DR_OUT_OF_MEMORY;
    }
  }
  dr_status status() const noexcept { return status_; }
#endif
  Workspace(Workspace&& other) noexcept { *this = std::move(other); }
  Workspace& operator=(Workspace&& other) noexcept {
    memory_ = std::move(other.memory_);
    bytes_ = std::exchange(other.bytes_, 0);
#if !defined(__cpp_exceptions)
    status_ = other.status_;
#endif
    return *this;
  }

  void* data() const noexcept { return memory_.get(); }
  size_t size() const noexcept { return bytes_; }

 private:
  struct Release {
    void operator()(void* memory) const noexcept { ::operator delete (memory, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<void, Release> memory_;
  size_t bytes_ = 0;
#if !defined(__cpp_exceptions)
  dr_status status_ = DR_SUCCESS;
#endif
};

// Owns a dr_plan. Immutable: several threads may execute one plan at once, each with its own workspace.
class Plan {
 public:
  explicit Plan(const dr_problem& problem) : Plan(&problem, nullptr) {}
  Plan(const dr_problem& problem, const dr_options& options) : Plan(&problem, &options) {}

#if defined(__cpp_exceptions)
  size_t workspace_bytes() const {
    size_t bytes = 0;
    check(dr_plan_workspace_bytes(get(), &bytes));
    return bytes;
  }

  dr_plan_summary summary() const {
    dr_plan_summary summary;
    dr_plan_summary_init(&summary);
    check(dr_plan_summarize(get(), &summary));
    return summary;
  }

  std::string describe(int32_t format = DR_DESCRIBE_TEXT) const {
    size_t needed = 0;
    check(dr_plan_describe(get(), format, nullptr, 0, &needed));
    std::string text(needed, '\0');
    check(dr_plan_describe(get(), format, text.data(), text.size(), nullptr));
    text.resize(needed - 1);
    return text;
  }

  void execute(const dr_tensors& tensors, void* workspace, size_t workspace_bytes, void* stream = nullptr) const {
    check(dr_execute(get(), &tensors, workspace, workspace_bytes, stream));
  }
  void execute(const dr_tensors& tensors, const Workspace& workspace, void* stream = nullptr) const {
    execute(tensors, workspace.data(), workspace.size(), stream);
  }
#else
  // Of making the plan: all others of its functions fail if this is not DR_SUCCESS.
  dr_status status() const noexcept { return status_; }

  size_t workspace_bytes() const noexcept {
    size_t bytes = 0;
    return check(dr_plan_workspace_bytes(get(), &bytes)) == DR_SUCCESS ? bytes : 0;
  }

  dr_plan_summary summary() const noexcept {
    dr_plan_summary summary;
    dr_plan_summary_init(&summary);
    if (check(dr_plan_summarize(get(), &summary)) != DR_SUCCESS) dr_plan_summary_init(&summary);
    return summary;
  }

  std::string describe(int32_t format = DR_DESCRIBE_TEXT) const {
    size_t needed = 0;
    if (check(dr_plan_describe(get(), format, nullptr, 0, &needed)) != DR_SUCCESS) return {};
    std::string text(needed, '\0');
    if (check(dr_plan_describe(get(), format, text.data(), text.size(), nullptr)) != DR_SUCCESS) return {};
    text.resize(needed - 1);
    return text;
  }

  [[nodiscard]] dr_status execute(const dr_tensors& tensors, void* workspace, size_t workspace_bytes,
                                  void* stream = nullptr) const noexcept {
    return check(dr_execute(get(), &tensors, workspace, workspace_bytes, stream));
  }
  [[nodiscard]] dr_status execute(const dr_tensors& tensors, const Workspace& workspace,
                                  void* stream = nullptr) const noexcept {
    return execute(tensors, workspace.data(), workspace.size(), stream);
  }
#endif

  const dr_plan* get() const noexcept { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(dr_plan* plan) const noexcept { dr_plan_destroy(plan); }
  };

  Plan(const dr_problem* problem, const dr_options* options) {
    dr_plan* plan = nullptr;
#if defined(__cpp_exceptions)
    check(dr_plan_create(problem, options, &plan));
#else
    status_ = check(dr_plan_create(problem, options, &plan));
#endif
    handle_.reset(plan);
  }

  std::unique_ptr<dr_plan, Destroy> handle_;
#if !defined(__cpp_exceptions)
  dr_status status_ = DR_SUCCESS;
#endif
};

#if defined(__cpp_exceptions)
// Returns the facts of a known device ("cpu", "h200", ...), for dr_options.device. Throws for an unknown name.
inline dr_device find_device(const std::string& name) {
  dr_device device;
  dr_device_init(&device);
  check(dr_device_find(name.c_str(), &device));
  return device;
}
#else
// Fills in the facts of a known device ("cpu", "h200", ...), for dr_options.device.
[[nodiscard]] inline dr_status find_device(const char* name, dr_device* device) noexcept {
  dr_device_init(device);
  return check(dr_device_find(name, device));
}
#endif

}  // namespace wrapper, or wrapper_of_statuses
}  // namespace deltarelay

#endif  // DELTARELAY_DELTARELAY_HPP_
