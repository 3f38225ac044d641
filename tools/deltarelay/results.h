// Rows of a benchmark as a table, as Markdown and in the JSON format that committed results share.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "case/case.h"
#include "deltarelay/timing.h"

namespace deltarelay::command {

struct BenchRow {
  cases::Case what;
  Timing timing;
  double error = 0;  // worst error measure of the checked run
};

// Multiply-adds of the recurrence count two: 7 DK DV a token-head, whatever the algorithm does.
double gflops_of(const BenchRow& row);
double token_heads_per_second(const BenchRow& row);

std::vector<std::string> result_header();
std::vector<std::string> result_cells(const BenchRow& row);
size_t result_left_columns();  // how many of the cells are words

nlohmann::json results_json(const std::vector<BenchRow>& rows, const std::string& commit);

}  // namespace deltarelay::command
