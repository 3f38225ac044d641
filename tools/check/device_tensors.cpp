#include "check/device_tensors.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "check/device_generate.h"
#include "deltarelay/tensor_list.hpp"

namespace deltarelay::check::gpu {
namespace {

bool is_token_input(const std::string& name) {
  if (name == "qkv") return true;  // q, k and v in one
  for (const TensorEntry& entry : kCallTensors)
    if (name == entry.name) return entry.kind == TensorKind::kRows && entry.direction == TensorDirection::kIn;
  return false;
}

}  // namespace

GuardedMemory::GuardedMemory(int64_t bytes, int64_t alignment) : bytes_(bytes), alignment_(alignment) {
  const GuardLayout layout = guard_layout(bytes, alignment);
  memory_ = Memory(layout.total);  // CUDA's own alignment is above any that the contract knows
  data_ = memory_.data() + layout.lead;
  const std::vector<std::byte> guard = guard_bytes();
  gpu::upload(data_ - kGuardBytes, guard.data(), kGuardBytes);
  gpu::upload(data_ + bytes_, guard.data(), kGuardBytes);
}

bool GuardedMemory::intact() const {
  if (data_ == nullptr) return true;
  const std::vector<std::byte> expected = guard_bytes();
  for (const std::byte* guard : {data_ - kGuardBytes, data_ + bytes_}) {
    std::vector<std::byte> found(expected.size());
    gpu::download(found.data(), guard, kGuardBytes);
    if (found != expected) return false;
  }
  return true;
}

void DeviceTensors::add(const char* name, bool output, int64_t bytes, int64_t alignment) {
  pieces_.push_back({name, output, GuardedMemory(bytes, alignment)});
}

template <class Placed>
void DeviceTensors::place(const dr_tensors& from, const Placed& placed) {
  tensors_ = from;
  dr_intermediates_init(&intermediates_);
  for (const TensorEntry& entry : kTensors) {
    if (entry.kind == TensorKind::kReport) continue;
    void* const pointer = placed(pointer_of(from, entry));
    if (is_intermediate(entry.tensor)) {
      set_pointer(intermediates_, entry, pointer);
    } else {
      set_pointer(tensors_, entry, pointer);
    }
  }
  if (from.intermediates != nullptr) tensors_.intermediates = &intermediates_;
}

DeviceTensors::DeviceTensors(TensorSet& host, Tokens tokens) : case_(host.of()) {
  const std::vector<TensorSet::Memory> all = host.memory();
  for (const TensorSet::Memory& memory : all)
    add(memory.name, memory.output != nullptr, memory.bytes, memory.alignment);
  place(host.tensors(), [&](const void* pointer) -> void* {
    if (pointer == nullptr) return nullptr;
    const auto* address = static_cast<const std::byte*>(pointer);
    for (size_t i = 0; i < all.size(); ++i) {
      if (address >= all[i].data && (address < all[i].data + all[i].bytes || address == all[i].data))
        return pieces_[i].memory.data() + (address - all[i].data);
    }
    throw std::logic_error("DeviceTensors: a pointer lies in no known memory");
  });
  upload(host, tokens);
}

DeviceTensors::DeviceTensors(const DeviceTensors& other) : case_(other.case_) {
  for (const Piece& piece : other.pieces_)
    add(piece.name, piece.output, piece.memory.bytes(), piece.memory.alignment());
  place(other.tensors_, [&](const void* pointer) -> void* {
    for (size_t i = 0; pointer != nullptr && i < pieces_.size(); ++i) {
      const std::byte* begin = other.pieces_[i].memory.data();
      const auto* address = static_cast<const std::byte*>(pointer);
      if (address >= begin && (address < begin + other.pieces_[i].memory.bytes() || address == begin))
        return pieces_[i].memory.data() + (address - begin);
    }
    return nullptr;
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    gpu::copy(pieces_[i].memory.data(), other.pieces_[i].memory.data(), pieces_[i].memory.bytes());
    pieces_[i].hash = other.pieces_[i].hash;
  }
}

int64_t DeviceTensors::rows_of(const Piece& piece) const {
  for (const TensorEntry& entry : kTensors) {
    if (std::strcmp(entry.name, piece.name) != 0) continue;
    if (is_intermediate(entry.tensor)) return cases::intermediate_rows(case_, entry).back();
    if (entry.kind == TensorKind::kRows) return case_.tokens();
    if (entry.kind == TensorKind::kPool) return case_.num_seqs();
  }
  throw std::logic_error(std::string("DeviceTensors: no heads in ") + piece.name);
}

DeviceTensors::DeviceTensors(const DeviceTensors& few, const cases::Case& many) : case_(many) {
  const int64_t copies = many.heads_v / few.case_.heads_v;
  for (const Piece& piece : few.pieces_)
    add(piece.name, piece.output, copies * piece.memory.bytes(), piece.memory.alignment());
  place(few.tensors_, [&](const void* pointer) -> void* {
    for (size_t i = 0; pointer != nullptr && i < pieces_.size(); ++i)
      if (few.pieces_[i].memory.data() == pointer) return pieces_[i].memory.data();
    return nullptr;
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].output) continue;
    const GuardedMemory& from = few.pieces_[i].memory;
    const int64_t rows = rows_of(pieces_[i]), width = from.bytes() / std::max<int64_t>(rows, 1);
    for (int64_t copy = 0; copy < copies; ++copy)
      gpu::copy_rows(pieces_[i].memory.data() + copy * width, copies * width, from.data(), width, width, rows);
  }
  remember_inputs();
  poison();
}

void DeviceTensors::take_outputs(const DeviceTensors& many, int64_t copy) {
  const int64_t copies = many.case_.heads_v / case_.heads_v;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!pieces_[i].output) continue;
    const GuardedMemory& to = pieces_[i].memory;
    const int64_t rows = rows_of(pieces_[i]), width = to.bytes() / std::max<int64_t>(rows, 1);
    gpu::copy_rows(to.data(), width, many.pieces_[i].memory.data() + copy * width, copies * width, width, rows);
  }
}

int64_t DeviceTensors::bytes() const {
  int64_t total = 0;
  for (const Piece& piece : pieces_) total += piece.memory.bytes();
  return total;
}

const DeviceTensors::Piece* DeviceTensors::find(const char* name) const {
  for (const Piece& piece : pieces_)
    if (std::strcmp(piece.name, name) == 0) return &piece;
  return nullptr;
}

std::vector<uint64_t> DeviceTensors::input_hashes() const {
  std::vector<uint64_t> hashes(pieces_.size());
  const Memory sums(static_cast<int64_t>(hashes.size() * sizeof(uint64_t)));
  gpu::fill(sums.data(), 0, sums.bytes());
  const Stream stream;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const GuardedMemory& memory = pieces_[i].memory;
    if (!pieces_[i].output)
      stream.add_hash(memory.data(), memory.bytes(), reinterpret_cast<uint64_t*>(sums.data()) + i);
  }
  gpu::download(hashes.data(), sums.data(), sums.bytes());
  return hashes;
}

void DeviceTensors::remember_inputs() {
  const std::vector<uint64_t> hashes = input_hashes();
  for (size_t i = 0; i < pieces_.size(); ++i) pieces_[i].hash = hashes[i];
}

void DeviceTensors::upload(TensorSet& host, Tokens tokens) {
  const std::vector<TensorSet::Memory> all = host.memory();
  const bool generated = tokens == Tokens::kMadeHere && can_generate(case_);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (all.size() != pieces_.size() || all[i].bytes != pieces_[i].memory.bytes())
      throw std::logic_error("DeviceTensors: upload of other shapes");
    if (pieces_[i].output) continue;
    if (generated && is_token_input(pieces_[i].name)) {
      pieces_[i].memory.poison();  // elements that no token writes stay NaN, as in host memory
    } else {
      gpu::upload(pieces_[i].memory.data(), all[i].data, all[i].bytes);
    }
  }
  if (generated) generate_tokens(case_, host.of().seed, tensors_);
  remember_inputs();
  poison();
}

bool DeviceTensors::generate(uint64_t seed) {
  if (!can_generate(case_)) return false;
  generate_tokens(case_, seed, tensors_);
  remember_inputs();
  return true;
}

void DeviceTensors::poison(const Stream& stream) const {
  for (const Piece& piece : pieces_)
    if (piece.output) stream.fill(piece.memory.data(), 0xff, piece.memory.bytes());
  if (!case_.in_place) return;
  const GuardedMemory& states = find("final")->memory;
  stream.copy(states.data(), find("initial")->memory.data(), states.bytes());
}

void DeviceTensors::poison() {
  const Stream stream;
  synchronize();
  poison(stream);
  synchronize();
}

void DeviceTensors::download(TensorSet& host) const {
  const std::vector<TensorSet::Memory> all = host.memory();
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (pieces_[i].output) gpu::download(all[i].output, pieces_[i].memory.data(), all[i].bytes);
}

std::string DeviceTensors::damaged_canaries() const {
  for (const Piece& piece : pieces_)
    if (!piece.memory.intact()) return std::string(piece.name) + ": written outside its memory";
  return {};
}

std::string DeviceTensors::damage() const {
  std::string found = damaged_canaries();
  if (!found.empty()) return found;
  const std::vector<uint64_t> hashes = input_hashes();
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (hashes[i] != pieces_[i].hash) return std::string(pieces_[i].name) + ": an input was changed by the run";
  return {};
}

void DeviceTensors::add_output_hash(const Stream& stream, uint64_t* sum) const {
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (pieces_[i].output) stream.add_hash(pieces_[i].memory.data(), pieces_[i].memory.bytes(), sum, i);
}

uint64_t DeviceTensors::output_hash() const {
  const Memory sum(sizeof(uint64_t));
  gpu::fill(sum.data(), 0, sum.bytes());
  const Stream stream;
  add_output_hash(stream, reinterpret_cast<uint64_t*>(sum.data()));
  uint64_t value = 0;
  gpu::download(&value, sum.data(), sizeof value);
  return value;
}

}  // namespace deltarelay::check::gpu
