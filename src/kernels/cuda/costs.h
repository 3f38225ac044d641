// Stage costs of kernels on a GPU, from those that were measured on one (dr_costs). Plain C++.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/backend.h"

namespace deltarelay::cuda {

struct MeasuredCosts {
  int32_t emit_ns, summarize_ns;
  int32_t local_ns;  // part of emit_ns that each of two CTAs repeats when they share a head's value columns
  int32_t summarize_local_ns;
  int32_t emit_bytes, summarize_bytes;
  int32_t prepare_ns;  // a multiprocessor's time with four CTAs on it: throughput, not latency
  int32_t item_ns;     // a CTA's start and end: state in and out, first operands
  int32_t split_ns;    // two more launches
};

// On a GPU whose chunks take `tenths` of the time; the carry is the caller's affair.
inline void scale_costs(const MeasuredCosts& measured, const DeviceSpeed& speed, int32_t chunk, int32_t tenths,
                        dr_costs& c) {
  c.chunk = chunk;
  c.emit_ns = measured.emit_ns * tenths / 10;
  c.summarize_ns = measured.summarize_ns * tenths / 10;
  c.local_ns = measured.local_ns * tenths / 10;
  c.summarize_local_ns = measured.summarize_local_ns * tenths / 10;
  c.split_ns = measured.split_ns;
  c.item_ns = measured.item_ns;
  c.emit_bytes = measured.emit_bytes;
  c.summarize_bytes = measured.summarize_bytes;
  c.prepare_ns = measured.prepare_ns * tenths / 10;
  c.measured = speed.measured ? 1 : 0;
  std::strncpy(c.measured_on, speed.measured_on, sizeof c.measured_on - 1);
}

}  // namespace deltarelay::cuda
