#pragma once

#include <string>

#include "core/text/json.hpp"

namespace capstan::cli {

/// A page that needs nothing but itself, of the tuning.json of a search: predicted against measured seconds of a step,
/// memory against rate with those points that no other beats in both, and a table of all trials. Throws RuntimeFault
/// for another file.
std::string tuning_page(const std::string& title, const Json& tuning);

}  // namespace capstan::cli
