// Peak rate of the machine: fp32 multiply-adds on registers only, with its widest vectors.
#pragma once
#include <cstdint>
#include <string>

namespace deltarelay::command {

// Keeps `threads` threads busy for about `seconds` each and returns their common rate in GFLOP/s (an FMA counts two).
double measure_fma_gflops(int32_t threads, double seconds);

// Name of the instruction set that was used.
std::string fma_target();

}  // namespace deltarelay::command
