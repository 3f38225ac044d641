// Rows of a benchmark as a table, as Markdown and in the JSON format that committed results share.
#pragma once
#include <string>
#include <vector>

#include "case/case.h"
#include "deltarelay/timing.h"

namespace deltarelay::command {

struct SweepPoint {
  int64_t segments = 0;  // asked for, of every sequence that has so many chunks
  double ms = 0;
};

struct BenchRow {
  cases::Case what;
  Timing timing;
  double error = 0;               // worst error measure of the checked run
  std::vector<SweepPoint> sweep;  // the same case with other numbers of segments, where asked for
};

// Multiply-adds of the recurrence count two: 7 DK DV a token-head, whatever the algorithm does.
double gflops_of(const BenchRow& row);
double token_heads_per_second(const BenchRow& row);

// Columns that a table has: those of a CPU (threads, share of its peak) or of a GPU (bandwidth, time of the host).
enum class Columns { kCpu, kGpu };
struct Column {
  const char* title;
  size_t width;  // of what usually comes
  std::string (*cell)(const BenchRow& row);
};
const std::vector<Column>& result_columns(Columns kind);
constexpr size_t kLeftColumns = 2;  // how many of them are words

// A JSON text.
std::string results_json(const std::vector<BenchRow>& rows, const std::string& commit);

}  // namespace deltarelay::command
