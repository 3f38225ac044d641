#include "kernels/cpu/usable_cpus.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "kernels/backend.h"

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace deltarelay {
namespace cpu {
namespace {

#if defined(__linux__)

// The affinity of a thread, one bit per CPU in the words of cpu_set_t. On the stack: threads of the pool read it, and
// may not end the process when memory runs out.
struct Affinity {
  static constexpr size_t kMostSets = 64;  // 65,536 CPUs
  size_t sets = 0;                         // 0: the system does not tell
  cpu_set_t set[kMostSets] = {};

  size_t bytes() const { return sets * sizeof(cpu_set_t); }
};

Affinity affinity_of(pid_t thread) {
  Affinity affinity;
  for (size_t sets = 1; sets <= Affinity::kMostSets; sets *= 2) {  // the system refuses a set smaller than its own
    if (sched_getaffinity(thread, sets * sizeof(cpu_set_t), affinity.set) != 0) continue;
    affinity.sets = sets;
    break;
  }
  return affinity;
}

// The id of the main thread is the id of the process.
Affinity affinity_of_process() { return affinity_of(getpid()); }

int32_t affinity_cpus() {
  const Affinity process = affinity_of_process();
  return process.sets == 0 ? 0 : CPU_COUNT_S(process.bytes(), process.set);
}

#else

int32_t affinity_cpus() { return 0; }

#endif

std::vector<std::string> words_of(const std::string& line, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

bool lists(const std::string& names, const std::string& name) {
  const std::vector<std::string> all = words_of(names, ',');
  return std::find(all.begin(), all.end(), name) != all.end();
}

// A mounted cgroup hierarchy and the place of this process in it.
struct Hierarchy {
  std::string mount;  // folder of the mount
  std::string root;   // cgroup that is visible at `mount`
  std::string group;  // cgroup of this process
  bool unified = false;
};

std::vector<Hierarchy> mounted_hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // Fields: number parent device root mount options [optional...] - type source options
    const std::vector<std::string> words = words_of(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const bool unified = dash[1] == "cgroup2";
    if (!unified && !(dash[1] == "cgroup" && lists(dash[3], "cpu"))) continue;
    found.push_back({words[4], words[3], "", unified});
  }
  return found;
}

void place_process(const std::string& root, std::vector<Hierarchy>& hierarchies) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // Fields: number:controllers:path. The unified hierarchy has number 0 and no controllers.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    for (Hierarchy& h : hierarchies) {
      if (h.unified ? controllers.empty() : lists(controllers, "cpu")) h.group = line.substr(second + 1);
    }
  }
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t quota_in(const std::string& folder, bool unified) {
  int64_t quota = -1, period = 0;
  if (unified) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" is no number and leaves `quota` at 0
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? (quota - 1) / period + 1 : kNoLimit;
}

}  // namespace

int32_t quota_cpus(const std::string& root) {
  std::vector<Hierarchy> hierarchies = mounted_hierarchies(root);
  place_process(root, hierarchies);
  int64_t least = kNoLimit;
  for (const Hierarchy& h : hierarchies) {
    // Path below the mount. Inside a container, a group outside the visible root appears as the mount itself.
    std::string path;
    if (h.root == "/") {
      path = h.group;
    } else if (h.group.compare(0, h.root.size(), h.root) == 0) {
      path = h.group.substr(h.root.size());
    }
    for (;;) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      least = std::min(least, quota_in(root + h.mount + path, h.unified));
      if (path.empty()) break;
      path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least == kNoLimit ? 0 : static_cast<int32_t>(std::min<int64_t>(least, std::numeric_limits<int32_t>::max()));
}

int32_t usable_cpus() {
  static const int32_t quota = quota_cpus("");
  int32_t cpus = affinity_cpus();
  if (cpus < 1) cpus = static_cast<int32_t>(std::thread::hardware_concurrency());
  if (quota > 0) cpus = std::min(cpus, quota);
  return std::max(1, cpus);
}

}  // namespace cpu

void cpu_run_anywhere() {
#if defined(__linux__)
  const cpu::Affinity process = cpu::affinity_of_process(), own = cpu::affinity_of(0);
  // If the affinity cannot be read or set, the thread keeps the affinity of the thread that created it.
  if (process.sets == 0 || (own.sets == process.sets && CPU_EQUAL_S(process.bytes(), own.set, process.set))) return;
  sched_setaffinity(0, process.bytes(), process.set);
#endif
}

}  // namespace deltarelay
