#include "deltarelay/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace deltarelay::command {
namespace {

constexpr int kBarCells = 30;
constexpr std::chrono::seconds kQuiet{1};  // work shorter than this shows no bar
constexpr std::chrono::milliseconds kRedrawn{250};

std::string coloured(const char* code, const std::string& text) {
  static const bool colours = stdout_is_terminal() && std::getenv("NO_COLOR") == nullptr;
  return colours ? "\033[" + std::string(code) + "m" + text + "\033[0m" : text;
}

int stderr_columns() {
  constexpr int kUsual = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// Width on a screen: counts bytes that begin a UTF-8 character.
size_t columns_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string format(const char* pattern, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

}  // namespace

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

std::string green(const std::string& text) { return coloured("32", text); }
std::string red(const std::string& text) { return coloured("31;1", text); }
std::string bold(const std::string& text) { return coloured("1", text); }
std::string dim(const std::string& text) { return coloured("2", text); }

Progress::~Progress() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  erase();
}

void Progress::show(int64_t done, const std::string& what) {
  static const bool terminal = stderr_is_terminal();
  if (!terminal) return;
  const std::lock_guard lock(mutex_);
  done_ = done;
  what_ = what;
  wanted_ = true;
  draw();
  if (thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { redraw(); });
  } catch (const std::system_error&) {  // then the bar stands still between calls
  }
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  wanted_ = false;
  erase();
}

void Progress::redraw() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kRedrawn, [this] { return ended_; }))
    if (wanted_) draw();
}

void Progress::draw() {
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  if (elapsed < kQuiet) return;
  const double share =
      total_ > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0) : 0.0;
  const int full = static_cast<int>(share * kBarCells);
  std::string bar;
  for (int i = 0; i < kBarCells; ++i) bar += i < full ? "█" : "░";
  std::array<char, 96> numbers{};
  std::snprintf(numbers.data(), numbers.size(), " %3.0f%%  %lld/%lld  %.0f s  ", 100 * share,
                static_cast<long long>(done_), static_cast<long long>(total_),
                std::chrono::duration<double>(elapsed).count());
  const std::string text = numbers.data() + what_;
  // A line that wraps could not be erased.
  const size_t room = static_cast<size_t>(std::max(0, stderr_columns() - kBarCells - 1));
  std::fprintf(stderr, "\r\033[K%s%s", bar.c_str(), text.substr(0, room).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::erase() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const std::string& cell : header_) widths.push_back(columns_of(cell));
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  const auto line = [&](const std::vector<std::string>& row) {
    std::string out;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string gap(widths[i] - columns_of(row[i]), ' ');
      if (i > 0) out += "  ";
      out += i < left_ ? row[i] + gap : gap + row[i];
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::string out = bold(line(header_));
  for (const auto& row : rows_) out += line(row);
  return out;
}

std::string Table::markdown() const {
  const auto line = [](const std::vector<std::string>& row) {
    std::string out = "|";
    for (const std::string& cell : row) out += " " + cell + " |";
    return out + "\n";
  };
  std::string out = line(header_) + "|";
  for (size_t i = 0; i < header_.size(); ++i) out += i < left_ ? "---|" : "--:|";
  out += "\n";
  for (const auto& row : rows_) out += line(row);
  return out;
}

std::string significant(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return format("%g", value);
  const int magnitude = static_cast<int>(std::floor(std::log10(std::fabs(value))));
  std::array<char, 64> text{};
  if (magnitude < -3) {
    std::snprintf(text.data(), text.size(), "%.*e", std::max(0, digits - 1), value);
  } else {
    std::snprintf(text.data(), text.size(), "%.*f", std::max(0, digits - 1 - magnitude), value);
  }
  return text.data();
}

std::string thousands(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string duration(double nanoseconds) {
  if (nanoseconds < 1e3) return significant(nanoseconds) + " ns";
  if (nanoseconds < 1e6) return significant(nanoseconds / 1e3) + " us";
  if (nanoseconds < 1e9) return significant(nanoseconds / 1e6) + " ms";
  return significant(nanoseconds / 1e9) + " s";
}

std::string bytes(int64_t count) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(count);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == std::floor(value) || value >= 100;
  return format(whole ? "%.0f " : "%.1f ", value) + kUnits[unit];
}

}  // namespace deltarelay::command
