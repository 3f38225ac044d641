#include "kernels/cpu/cpu_model.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>

namespace deltarelay::cpu {
namespace {

// Linux on Arm reports numbers. Implementer 0x41 is Arm, whose parts are named here; others are printed as numbers.
struct ArmPart {
  std::string_view part;
  std::string_view name;
};
constexpr std::array<ArmPart, 14> kArmParts = {{{"0xd03", "Cortex-A53"},
                                                {"0xd05", "Cortex-A55"},
                                                {"0xd07", "Cortex-A57"},
                                                {"0xd08", "Cortex-A72"},
                                                {"0xd0b", "Cortex-A76"},
                                                {"0xd0c", "Neoverse-N1"},
                                                {"0xd40", "Neoverse-V1"},
                                                {"0xd41", "Cortex-A78"},
                                                {"0xd49", "Neoverse-N2"},
                                                {"0xd4f", "Neoverse-V2"},
                                                {"0xd80", "Cortex-A520"},
                                                {"0xd83", "Neoverse-V3AE"},
                                                {"0xd84", "Neoverse-V3"},
                                                {"0xd8e", "Neoverse-N3"}}};

std::string model_of_first_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  std::string implementer;
  std::string part;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) {
      if (!part.empty()) break;  // the first processor is enough
      continue;
    }
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    std::string value = line.substr(std::min(line.size(), colon + 2));
    if (key == "model name") return value;
    if (key == "CPU implementer") implementer = value;
    if (key == "CPU part") part = value;
  }
  if (part.empty()) return "";
  if (implementer == "0x41")
    for (const ArmPart& known : kArmParts)
      if (known.part == part) return "Arm " + std::string(known.name);
  return "Arm CPU, implementer " + implementer + ", part " + part;
}

}  // namespace

const char* cpu_model() {
  struct Text {  // as long as dr_device.model; no destructor, because threads may plan while the process exits
    char bytes[64];
  };
  static const Text kModel = [] {
    Text text{};
    model_of_first_processor().copy(text.bytes, sizeof text.bytes - 1);
    return text;
  }();
  return kModel.bytes;
}

}  // namespace deltarelay::cpu
