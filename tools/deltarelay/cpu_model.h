// What this machine's processor calls itself, for reports; nothing is decided by it.
#pragma once
#include <string>

namespace deltarelay::command {

std::string cpu_model();

}  // namespace deltarelay::command
