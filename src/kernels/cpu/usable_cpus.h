// How many CPUs this process may keep busy. A property of the process: it does not depend on the thread that asks, which an engine
// may have pinned to one core.
#pragma once
#include <cstdint>
#include <string>

namespace deltarelay::cpu {

// CPUs of the main thread's affinity, which taskset, numactl, cpusets and job schedulers set; at most those that the quota of
// the process's cgroups pays for. At least 1. The affinity is asked at every call (about a microsecond), the quota once:
// reading it takes as long as planning.
int32_t usable_cpus();

// CPUs that the cgroups of this process, those above it included, pay for: the least quota / period, rounded up; 0: no limit.
// Versions 1 and 2. Files are looked for under `root`.
int32_t quota_cpus(const std::string& root);

}  // namespace deltarelay::cpu
