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

// The affinity of a thread, one bit per CPU in the words of cpu_set_t. Empty if the system does not tell.
std::vector<cpu_set_t> affinity_of(pid_t thread) {
  constexpr size_t kMostSets = 64;                          // 65,536 CPUs
  for (size_t count = 1; count <= kMostSets; count *= 2) {  // the system refuses a set that is smaller than its own
    std::vector<cpu_set_t> sets(count);
    if (sched_getaffinity(thread, count * sizeof(cpu_set_t), sets.data()) == 0) return sets;
  }
  return {};
}

// The id of the main thread is the id of the process.
std::vector<cpu_set_t> affinity_of_process() { return affinity_of(getpid()); }

int32_t affinity_cpus() {
  const std::vector<cpu_set_t> sets = affinity_of_process();
  return sets.empty() ? 0 : CPU_COUNT_S(sets.size() * sizeof(cpu_set_t), sets.data());
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
  const auto process = cpu::affinity_of_process();
  const auto own = cpu::affinity_of(0);
  const size_t bytes = process.size() * sizeof(cpu_set_t);
  // If the affinity cannot be read or set, the thread keeps the affinity of the thread that created it.
  if (process.empty() || (own.size() == process.size() && CPU_EQUAL_S(bytes, own.data(), process.data()))) return;
  sched_setaffinity(0, bytes, process.data());
#endif
}

}  // namespace deltarelay
