// The steps of a stage as launches.
#pragma once
#include "kernels/cuda/launch/call.h"

namespace deltarelay::cuda::sm80 {

// Steps that are the same on every architecture included.
void launch_stage(const DeviceCall& device_call, const Call& call, const Step& step);
// Loads the kernels of the problem's stage, for all widths, onto the current device.
void load_stage(const Problem& problem);

}  // namespace deltarelay::cuda::sm80
