// Linux gives a process the tile registers of AMX on request. The grant lasts as long as the process, for all of its
// threads: frames of signals grow by 8 KB, and sigaltstack then refuses stacks that are too small for them. So the
// library asks for a plan that runs on AMX, and for nothing else.
#pragma once

namespace deltarelay::cpu {

// The system call arch_prctl: returns 0 or an errno.
using ArchPrctl = int (*)(int request, unsigned long argument);
int arch_prctl_of_linux(int request, unsigned long argument);  // ENOSYS on other systems and processors

// Can this system grant AMX? Asks for nothing.
bool amx_is_offered(ArchPrctl call = arch_prctl_of_linux);

// Asks for AMX. Returns "" if it is granted, now or earlier, else the reason why not.
const char* ask_for_amx(ArchPrctl call = arch_prctl_of_linux);

}  // namespace deltarelay::cpu
