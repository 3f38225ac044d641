// Terminal output of the command: colours and a progress bar on a terminal, plain lines in a pipe.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace deltarelay::command {

bool stdout_is_terminal();
bool stderr_is_terminal();

// Text in a colour if standard output is a terminal (and NO_COLOR is not set), else plain.
std::string green(const std::string& text);
std::string red(const std::string& text);
std::string bold(const std::string& text);
std::string dim(const std::string& text);

// A progress bar on standard error, drawn only on a terminal and only after a second of work. A thread draws it again
// between calls of show(), so that the seconds go on during work that reports nothing. Call clear() before printing to
// standard output, or both end up on one line; the next show() goes on.
class Progress {
 public:
  explicit Progress(int64_t total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t done, const std::string& what);
  void clear();

 private:
  void redraw();
  void draw();   // with the mutex held
  void erase();  // the same

  const int64_t total_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable wake_;
  int64_t done_ = 0;
  std::string what_;
  bool wanted_ = false;  // between show() and clear()
  bool drawn_ = false;
  bool ended_ = false;
  std::thread thread_;  // started by the first show() on a terminal
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
