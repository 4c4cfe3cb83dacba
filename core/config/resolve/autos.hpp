#pragma once

#include <vector>

#include "core/config/language/validator.hpp"
#include "core/config/typed/config.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Says what each "auto" became, a line for all of a section. One that only the program that trains can fill is a
/// notice when the file is merely checked, and an error when a training is about to start.
void report_autos(const std::vector<ResolvedAuto>& autos, const ConfigContext& context, Problems& problems);

}  // namespace capstan
