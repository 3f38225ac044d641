// Runs a fuzz target on inputs drawn from seeds: input number i of `--seed S` is the input of seed S + i.
//
//   <target> [--seed S] [--runs N] [--seconds T]      defaults: seed 1, 1000 runs; with --seconds as many as fit
//
// Whatever ends a run early (a failed expectation, a sanitizer, a signal, a run of over kMostSeconds) prints its seed.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "input.h"

// Defined by every sanitizer's runtime; absent from a build without one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

// UBSan has its own runtime beside that of ASan and ignores the callback: it ends by SIGABRT.
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

namespace {

constexpr size_t kBytes = 2048;         // per input; targets read a few hundred
constexpr unsigned kMostSeconds = 120;  // for one input, on a slow machine under a sanitizer

const char* program = "fuzz";
uint64_t seed = 1;

// Uses only functions that a signal handler may call.
void print_seed() {
  char line[256];
  char digits[24];
  size_t count = 0;
  for (uint64_t rest = seed; count == 0 || rest != 0; rest /= 10) digits[count++] = static_cast<char>('0' + rest % 10);
  size_t length = 0;
  const auto add = [&](const char* text) {
    for (; *text != '\0' && length < sizeof line - 32; ++text) line[length++] = *text;
  };
  add("fuzz: repeat with: ");
  add(program);
  add(" --seed ");
  while (count > 0) line[length++] = digits[--count];
  add(" --runs 1\n");
  if (write(STDERR_FILENO, line, length) < 0) _exit(2);
}

extern "C" void on_signal(int number) {
  print_seed();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

uint64_t next_word(uint64_t& state) {  // splitmix64
  uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void run_seed() {
  uint8_t bytes[kBytes];
  uint64_t state = seed;
  for (size_t i = 0; i < kBytes; i += sizeof(uint64_t)) {
    const uint64_t word = next_word(state);
    std::memcpy(bytes + i, &word, sizeof word);
  }
  fuzz::Input input(bytes, kBytes);
  alarm(kMostSeconds);
  fuzz::run_input(input);
}

uint64_t number(const char* option, const char* text) {
  char* end = nullptr;
  const uint64_t value = text != nullptr ? std::strtoull(text, &end, 10) : 0;
  if (text == nullptr || end == text || *end != '\0') {
    std::fprintf(stderr, "%s: expected a number, found '%s'\n", option, text != nullptr ? text : "");
    std::exit(2);
  }
  return value;
}

}  // namespace

void fuzz::fail(const std::string& words) {
  std::fprintf(stderr, "fuzz: %s\n", words.c_str());
  std::abort();
}

int main(int count, char** arguments) {
  program = arguments[0];
  uint64_t runs = 0;
  uint64_t seconds = 0;
  for (int i = 1; i < count; i += 2) {
    const uint64_t value = number(arguments[i], i + 1 < count ? arguments[i + 1] : nullptr);
    if (std::strcmp(arguments[i], "--seed") == 0) {
      seed = value;
    } else if (std::strcmp(arguments[i], "--runs") == 0) {
      runs = value;
    } else if (std::strcmp(arguments[i], "--seconds") == 0) {
      seconds = value;
    } else {
      std::fprintf(stderr, "expected --seed, --runs or --seconds, found '%s'\n", arguments[i]);
      return 2;
    }
  }
  if (runs == 0) runs = seconds == 0 ? 1000 : UINT64_MAX;

  // A sanitizer reports bad addresses itself and then calls back.
  std::vector<int> signals{SIGABRT, SIGALRM};
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(print_seed);
  } else {
    signals.insert(signals.end(), {SIGSEGV, SIGBUS, SIGILL, SIGFPE});
  }
  for (const int number : signals) std::signal(number, on_signal);

  const auto start = std::chrono::steady_clock::now();
  const uint64_t first = seed;
  uint64_t done = 0;
  for (; done < runs; ++done) {
    seed = first + done;
    if (seconds != 0 && std::chrono::steady_clock::now() - start >= std::chrono::seconds(seconds)) break;
    run_seed();
  }
  alarm(0);
  std::printf("%s: %llu inputs from seed %llu\n", program, static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(first));
  return 0;
}
