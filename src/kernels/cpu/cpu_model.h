// What the maker of this machine's CPU calls it.
#pragma once

namespace deltarelay::cpu {

// "Arm Neoverse-V1", "Intel(R) Xeon(R) ...", as the system names its first processor; "": not known. Asked once.
const char* cpu_model();

}  // namespace deltarelay::cpu
