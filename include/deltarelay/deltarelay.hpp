// DeltaRelay for C++20: RAII owners of the handles of deltarelay.h, and exceptions instead of statuses. The structures
// are those of the C header, so a caller can set every field directly.
//
//     deltarelay::Problem problem(DR_KDA);
//     problem.batched(1, 65536).heads(4, 4).widths(128, 128).types(DR_BF16).with_final(DR_STATE_VALUE_MAJOR);
//     const deltarelay::Plan plan(problem);
//     deltarelay::Workspace workspace(plan.workspace_bytes());
//     plan.execute(tensors, workspace);
#ifndef DELTARELAY_DELTARELAY_HPP_
#define DELTARELAY_DELTARELAY_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "deltarelay/deltarelay.h"

namespace deltarelay {
// Users compile this wrapper; the library does not. The inline namespace keeps the symbols of both apart.
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
    if (count < 2) {
      throw Exception(DR_INVALID, "offsets: expected at least 2 entries, found " + std::to_string(count));
    }
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
  explicit Workspace(size_t bytes) : bytes_(bytes) {
    if (bytes != 0) memory_.reset(::operator new (bytes, std::align_val_t{kAlignment}));
  }
  Workspace(Workspace&& other) noexcept : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Workspace& operator=(Workspace&& other) noexcept {
    memory_ = std::move(other.memory_);
    bytes_ = std::exchange(other.bytes_, 0);
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
};

// Owns a dr_plan. Immutable: several threads may execute one plan at once, each with its own workspace.
class Plan {
 public:
  explicit Plan(const dr_problem& problem) : Plan(&problem, nullptr) {}
  Plan(const dr_problem& problem, const dr_options& options) : Plan(&problem, &options) {}

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

  const dr_plan* get() const noexcept { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(dr_plan* plan) const noexcept { dr_plan_destroy(plan); }
  };

  Plan(const dr_problem* problem, const dr_options* options) {
    dr_plan* plan = nullptr;
    check(dr_plan_create(problem, options, &plan));
    handle_.reset(plan);
  }

  std::unique_ptr<dr_plan, Destroy> handle_;
};

// Returns the facts of a known device ("cpu", "h200", ...), for dr_options.device. Throws for an unknown name.
inline dr_device find_device(const std::string& name) {
  dr_device device;
  dr_device_init(&device);
  check(dr_device_find(name.c_str(), &device));
  return device;
}

}  // namespace wrapper
}  // namespace deltarelay

#endif  // DELTARELAY_DELTARELAY_HPP_
