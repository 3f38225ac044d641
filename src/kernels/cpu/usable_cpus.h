// How many CPUs this process may use. The answer does not depend on the calling thread, which an engine may have pinned
// to one core.
#pragma once
#include <cstdint>
#include <string>

namespace deltarelay::cpu {

// Number of CPUs in the main thread's affinity (set by taskset, numactl, cpusets or a job scheduler), limited by the
// quota of the process's cgroups. At least 1. Reads the affinity in every call (about 1 us), but the quota once:
// reading it takes as long as planning.
int32_t usable_cpus();

// CPUs that the cgroups of this process and their parents allow: the smallest quota / period, rounded up; 0 means no
// limit. Reads versions 1 and 2. Looks for the files under `root`.
int32_t quota_cpus(const std::string& root);

}  // namespace deltarelay::cpu
