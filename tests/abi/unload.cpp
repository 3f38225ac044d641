// A host of plug-ins: loads the library at run time, lets several threads work, and unloads it or exits. If pool
// threads outlive the library, this crashes. If the pool waits forever, the test runs into its time limit.
//
//   unload <libdeltarelay.so> cycles|exit|fork
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "deltarelay/deltarelay.h"

namespace {

constexpr int64_t kTokens = 512;
constexpr int32_t kHeads = 4;
constexpr int32_t kWidth = 32;
constexpr int32_t kThreads = 4;

void require(bool held, const std::string& what) {
  if (!held) throw std::runtime_error(what);
}

// The functions of the API, looked up in a library that stays loaded during the lifetime of this object.
class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    require(handle_ != nullptr, "dlopen: expected a library");
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <class Function>
  Function find(const char* name) const {
    void* symbol = dlsym(handle_, name);
    require(symbol != nullptr, std::string("dlsym: expected ") + name);
    return reinterpret_cast<Function>(symbol);
  }

 private:
  void* handle_;
};

#define DR_FIND(library, function) (library).find<decltype(&(function))>(#function)

// A plan for several threads with its tensors.
class Call {
 public:
  explicit Call(const Library& library)
      : q_(pattern(kTokens * kHeads * kWidth, 0.3f)),
        g_(static_cast<size_t>(kTokens * kHeads * kWidth), -0.1f),
        beta_(static_cast<size_t>(kTokens * kHeads), 0.5f),
        o_(q_.size()),
        execute_(DR_FIND(library, dr_execute)),
        destroy_(DR_FIND(library, dr_plan_destroy)) {
    dr_problem problem;
    dr_problem_init(&problem);
    problem.rule = DR_KDA;
    problem.num_seqs = 1;
    problem.seq_len = kTokens;
    problem.heads_qk = problem.heads_v = kHeads;
    problem.dk = problem.dv = kWidth;
    problem.l2norm = 1;
    dr_options options;
    dr_options_init(&options);
    options.threads = kThreads;
    require(DR_FIND(library, dr_plan_create)(&problem, &options, &plan_) == DR_SUCCESS, "dr_plan_create: a plan");
    require(DR_FIND(library, dr_plan_workspace_bytes)(plan_, &bytes_) == DR_SUCCESS, "dr_plan_workspace_bytes");
    storage_.resize(bytes_ + kAlign);
    const auto skew = reinterpret_cast<uintptr_t>(storage_.data()) % kAlign;
    workspace_ = storage_.data() + (kAlign - skew) % kAlign;
    dr_tensors_init(&tensors_);
    tensors_.q = tensors_.k = tensors_.v = q_.data();
    tensors_.g = g_.data();
    tensors_.beta = beta_.data();
    tensors_.o = o_.data();
  }
  ~Call() { destroy_(plan_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const std::vector<float>& run() {
    require(execute_(plan_, &tensors_, workspace_, bytes_, nullptr) == DR_SUCCESS, "dr_execute: success");
    return o_;
  }

 private:
  static constexpr size_t kAlign = 256;
  static std::vector<float> pattern(size_t count, float size) {
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = size * std::sin(0.7f * static_cast<float>(i));
    return data;
  }

  std::vector<float> q_, g_, beta_, o_;
  std::vector<unsigned char> storage_;
  dr_plan* plan_ = nullptr;
  size_t bytes_ = 0;
  void* workspace_ = nullptr;
  dr_tensors tensors_{};
  decltype(&dr_execute) execute_;
  decltype(&dr_plan_destroy) destroy_;
};

int64_t threads_here() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

void require_exit(pid_t child, const char* what) {
  require(child > 0, std::string(what) + ": expected a child");
  int status = 0;
  require(waitpid(child, &status, 0) == child, "waitpid");
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0,
          std::string(what) + ": expected exit code 0, found wait status " + std::to_string(status));
}

// Loads and unloads the library repeatedly: the results are the same every time, and no thread is left in between.
void cycles(const char* path) {
  const int64_t threads_before = threads_here();
  std::vector<float> expected;
  for (int32_t cycle = 0; cycle < 20; ++cycle) {
    {
      const Library library(path);
      Call call(library);
      for (int32_t i = 0; i < 3; ++i) {
        if (expected.empty()) expected = call.run();
        require(call.run() == expected, "o: expected the same bits in every cycle");
      }
      require(threads_here() > threads_before, "threads: expected those of a pool");
    }
    void* left = dlopen(path, RTLD_NOLOAD | RTLD_NOW);
    require(left == nullptr, "dlclose: expected the library to be gone");
    // A joined thread disappears from /proc a little later.
    for (int32_t wait = 0; wait < 1000 && threads_here() > threads_before; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    require(threads_here() == threads_before, "threads: expected none to be left by the library");
  }
  const pid_t child = fork();  // must not run a handler of the unloaded library
  if (child == 0) std::_Exit(0);
  require_exit(child, "fork after dlclose");
}

// The process ends while other threads are inside dr_execute.
void exit_at_work(const char* path) {
  for (int32_t round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      static const Library* library = nullptr;  // unloaded only by exit
      library = std::make_unique<Library>(path).release();
      static std::atomic<int32_t> calls{0};
      for (int32_t i = 0; i < 2; ++i) {
        std::thread([] {
          Call call(*library);
          for (;;) {
            call.run();
            calls.fetch_add(1);
          }
        }).detach();
      }
      // First before the threads have started, later somewhere inside a call.
      while (calls.load() < round) std::this_thread::yield();
      std::exit(0);
    }
    require_exit(child, "exit during dr_execute");
  }
}

// Children of a process with a pool: one uses the pool, one does not, one was created without the handlers of fork.
void forked(const char* path) {
  auto library = std::make_unique<Library>(path);
  auto call = std::make_unique<Call>(*library);
  const std::vector<float> expected = call->run();
  pid_t child = fork();
  if (child == 0) {
    if (call->run() != expected) std::_Exit(1);
    call.reset();
    library.reset();
    std::exit(dlopen(path, RTLD_NOLOAD | RTLD_NOW) == nullptr ? 0 : 2);
  }
  require_exit(child, "dr_execute and dlclose in a child");
  child = fork();
  if (child == 0) std::exit(0);
  require_exit(child, "exit of a child");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers do not support such a child
  child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) std::exit(0);
  require_exit(child, "exit of a child made by clone");
#endif
  require(call->run() == expected, "o: expected the same bits after the children");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[2] : "";
  try {
    if (what == "cycles") {
      cycles(argv[1]);
    } else if (what == "exit") {
      exit_at_work(argv[1]);
    } else if (what == "fork") {
      forked(argv[1]);
    } else {
      std::fprintf(stderr, "usage: unload <libdeltarelay.so> cycles|exit|fork\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "unload: %s\n", error.what());
    return 1;
  }
  return 0;
}
