// The memory of one case on the GPU: the pieces of TensorSet, each with canaries around it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "check/device_memory.h"
#include "check/memory.h"
#include "check/tensors.h"

namespace deltarelay::check::gpu {

// GuardedBuffer in the memory of the GPU.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  GuardedMemory(int64_t bytes, int64_t alignment);  // canaries are written, the data is not

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int64_t alignment() const { return alignment_; }

  void poison() { gpu::fill(data_, 0xff, bytes_); }
  bool intact() const;  // canaries

 private:
  Memory memory_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t alignment_ = 1;
};

// Source of q, k, v, g and beta: copied from host memory, or generated again by the GPU from the case's line. Both are
// equal unless somebody changed the host's values. Generating is much faster for gigabytes. Cases that only the CPU can
// generate are copied.
enum class Tokens { kCopied, kMadeHere };

class DeviceTensors {
 public:
  // Copies the current inputs of `host`. Outputs are poison.
  explicit DeviceTensors(TensorSet& host, Tokens tokens = Tokens::kCopied);
  // Copies the inputs to new addresses.
  explicit DeviceTensors(const DeviceTensors& other);
  // Tensors of a case with `copies` times as many heads, which repeat the inputs of the heads of `few`
  // (fewer_heads). Outputs are poison.
  DeviceTensors(const DeviceTensors& few, const cases::Case& many);
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  const dr_tensors& tensors() const { return tensors_; }
  const cases::Case& of() const { return case_; }
  int64_t bytes() const;  // of all tensors

  // Copies the inputs of `host`, which has the same shapes, to the existing addresses.
  void upload(TensorSet& host, Tokens tokens = Tokens::kCopied);
  // Draws other values for q, k, v, g and beta on the GPU. Returns false if only the CPU can (gpu::can_generate).
  bool generate(uint64_t seed);
  // Sets outputs to NaN (states in place: back to the initial states). Call it before every run.
  void poison();
  // The same, queued on a stream.
  void poison(const Stream& stream) const;
  // Copies outputs to `host`, where they can be measured.
  void download(TensorSet& host) const;
  // Takes the outputs of copy number `copy` of these heads from the tensors of more heads.
  void take_outputs(const DeviceTensors& many, int64_t copy);
  // Reports damage by a run, empty if there is none: damaged canaries; or those and changed inputs.
  std::string damaged_canaries() const;
  std::string damage() const;
  // Adds the hash of everything that a run may change to *sum (device memory). Queued.
  void add_output_hash(const Stream& stream, uint64_t* sum) const;
  uint64_t output_hash() const;

 private:
  struct Piece {
    const char* name;
    bool output;
    GuardedMemory memory;
    uint64_t hash = 0;  // inputs: hash of the data written there
  };
  std::vector<uint64_t> input_hashes() const;  // one per piece; 0 for outputs
  const Piece* find(const char* name) const;
  int64_t rows_of(const Piece& piece) const;  // of heads
  void remember_inputs();
  // Sets every pointer of `tensors_` and `intermediates_` to what `placed` returns for the pointer of `from`.
  template <class Placed>
  void place(const dr_tensors& from, const Placed& placed);
  void add(const char* name, bool output, int64_t bytes, int64_t alignment);

  cases::Case case_;
  std::vector<Piece> pieces_;
  dr_tensors tensors_;
  dr_intermediates intermediates_;  // of a stage; tensors_ points to it
};

}  // namespace deltarelay::check::gpu
