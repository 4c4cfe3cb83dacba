#pragma once

#include "core/config/resolve/effective.hpp"
#include "core/config/typed/config.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Says what a training needs and the configuration lacks, all in one message with what to add. Without a batch size it
/// is an error; an optimizer, a model, data and a number of steps are asked for only where no program brings them. When
/// a file is merely checked it is a notice.
void report_missing(const Effective& values, const Config& config, const ConfigContext& context, Problems& problems);

}  // namespace capstan
