// The manufacturer's name of this machine's CPU.
#pragma once

namespace deltarelay::cpu {

// Returns a name such as "Arm Neoverse-V1" or "Intel(R) Xeon(R) ..." of the first processor; "" if unknown. Read once.
const char* cpu_model();

}  // namespace deltarelay::cpu
