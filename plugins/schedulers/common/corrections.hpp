#pragma once

#include <string>
#include <string_view>

#include "capstan/sdk/scheduler.hpp"

namespace capstan::schedulers {

/// Whether capstan.corrections asks for the corrected form `name` of something that is otherwise done as recorded. The
/// engine passes the list as the parameter `corrections`; names of other schedules may stand in it.
inline bool corrected(const sdk::Params& params, std::string_view name) {
  for (std::size_t i = 0; i < params.size("corrections"); ++i) {
    if (params.text("corrections/" + std::to_string(i)) == name) return true;
  }
  return false;
}

}  // namespace capstan::schedulers
