// The memory of one case on the GPU: what TensorSet holds, piece for piece, each with canaries around it.
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

// Where q, k, v, g and beta come from: copied from host memory, or made anew by the GPU from the case's line, which is the same
// as long as nobody changed them there and much quicker when they are gigabytes (cases that only the CPU can make are copied).
enum class Tokens { kCopied, kMadeHere };

class DeviceTensors {
 public:
  // The inputs of `host` as they are now; outputs are poison.
  explicit DeviceTensors(TensorSet& host, Tokens tokens = Tokens::kCopied);
  // The same inputs at other addresses.
  explicit DeviceTensors(const DeviceTensors& other);
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  const dr_tensors& tensors() const { return tensors_; }
  const cases::Case& of() const { return case_; }
  int64_t bytes() const;  // of all tensors

  // The inputs of `host`, which has the same shapes, at the addresses they have here.
  void upload(TensorSet& host, Tokens tokens = Tokens::kCopied);
  // Other values for q, k, v, g and beta, drawn by the GPU; false where only the CPU can (gpu::can_generate).
  bool generate(uint64_t seed);
  // Outputs to NaN (states in place: back to the initial ones). Before every run.
  void poison();
  // The same, queued on a stream.
  void poison(const Stream& stream) const;
  // Outputs into those of `host`, where they can be measured.
  void download(TensorSet& host) const;
  // What a run must not have done that only shows here, empty when all is well: canaries touched; those, or inputs changed.
  std::string damaged_canaries() const;
  std::string damage() const;
  // Adds the hash of everything a run may have changed to *sum (device memory), queued.
  void add_output_hash(const Stream& stream, uint64_t* sum) const;
  uint64_t output_hash() const;

 private:
  struct Piece {
    const char* name;
    bool output;
    GuardedMemory memory;
    uint64_t hash = 0;  // inputs: of what was put there
  };
  std::vector<uint64_t> input_hashes() const;  // one for every piece; 0 of outputs
  const Piece* find(const char* name) const;
  void remember_inputs();
  void add(const char* name, bool output, int64_t bytes, int64_t alignment);

  cases::Case case_;
  std::vector<Piece> pieces_;
  dr_tensors tensors_;
};

}  // namespace deltarelay::check::gpu
