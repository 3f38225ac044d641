// The steps of a stage as launches.
#pragma once
#include <span>

#include "kernels/stages.h"
#include "kernels/step.h"

namespace deltarelay::cuda::sm90 {

void enqueue_stages(const DeviceCall& call, std::span<const Step> steps);
void load_stages();

}  // namespace deltarelay::cuda::sm90
