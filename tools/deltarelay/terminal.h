// Terminal output of the command: colours and a progress bar on a terminal, plain lines in a pipe.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace deltarelay::command {

bool stdout_is_terminal();
bool stderr_is_terminal();

// Text in a colour if standard output is a terminal (and NO_COLOR is not set), else plain.
std::string green(const std::string& text);
std::string red(const std::string& text);
std::string bold(const std::string& text);
std::string dim(const std::string& text);

// A progress bar on standard error, drawn only on a terminal and only after a second of work. Call clear() before
// printing to standard output, or both end up on one line.
class Progress {
 public:
  explicit Progress(int64_t total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t done, const std::string& what);
  void clear();

 private:
  int64_t total_;
  std::chrono::steady_clock::time_point start_;
  bool drawn_ = false;
};

// A table with aligned columns: the first `left` columns are aligned left, the others right.
class Table {
 public:
  Table(std::vector<std::string> header, size_t left) : header_(std::move(header)), left_(left) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;
  std::string markdown() const;

 private:
  std::vector<std::string> header_;
  size_t left_;
  std::vector<std::vector<std::string>> rows_;
};

// A number with this many significant digits, without an exponent if that is readable: 0.0123, 1.45, 812, 1.2e-06.
std::string significant(double value, int digits = 3);
// A count with separators for thousands: 1,234,567.
std::string thousands(int64_t value);
// A time in a suitable unit: 850 ns, 12.3 us, 4.56 ms, 1.2 s.
std::string duration(double nanoseconds);
// A size in a suitable unit: 512 B, 64 KiB, 1.5 MiB.
std::string bytes(int64_t count);

}  // namespace deltarelay::command
