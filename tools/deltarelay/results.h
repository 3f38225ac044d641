// Benchmark rows as a table, as Markdown and in the JSON format of committed results.
#pragma once
#include <string>
#include <vector>

#include "case/case.h"
#include "deltarelay/timing.h"

namespace deltarelay::command {

struct SweepPoint {
  int64_t segments = 0;  // requested for every sequence with enough chunks
  double ms = 0;
};

// The same case planned with other words.
struct Beside {
  std::string words;
  int64_t segments = 0;  // largest number of one sequence
  double ms = 0;
};

struct BenchRow {
  cases::Case what;
  Timing timing;
  double error = 0;               // largest error of the checked run
  std::vector<SweepPoint> sweep;  // the same case with other numbers of segments, if requested
  Beside beside;                  // with other words, if requested
};

// A multiply-add of the recurrence counts two: 7 DK DV per token-head, for every algorithm.
double gflops_of(const BenchRow& row);  // 0 of a stage
double token_heads_per_second(const BenchRow& row);

// Columns of a table: for a CPU (threads, share of its peak) or for a GPU (bandwidth, host time).
enum class Columns { kCpu, kGpu };
struct Column {
  const char* title;
  size_t width;  // enough for usual values
  std::string (*cell)(const BenchRow& row);
};
const std::vector<Column>& result_columns(Columns kind);
constexpr size_t kLeftColumns = 2;  // number of columns with words

// A JSON text.
std::string results_json(const std::vector<BenchRow>& rows, const std::string& commit);

}  // namespace deltarelay::command
