#pragma once

#include <string>
#include <vector>

#include "core/config/language/validator.hpp"
#include "core/schema/schema.hpp"
#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// The parameters of one component and where they stand.
struct ParamsPlace {
  std::string path;       // "optimizer.params"
  std::string component;  // "AdamW"
};

/// Checks parameters against the schema of a plugin and completes them. Unknown ones go to `unknown`; "auto" and null
/// mean the default; an "auto" without a default is left open in `autos`. Missing required ones are errors.
Json validate_params(const Json& given, const ParamsPlace& place, const std::vector<KeySpec>& specs, Problems& problems,
                     std::vector<UnknownKey>& unknown, std::vector<ResolvedAuto>& autos);

}  // namespace capstan
