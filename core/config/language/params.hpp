#pragma once

#include <string>
#include <vector>

#include "core/config/language/validator.hpp"
#include "core/schema/param_rule.hpp"
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

/// Reports the rules of the component that these values break, each at the first parameter that its condition names.
/// `overrides`, where given, are those of a parameter group, which are all that is looked at: other rules are those of
/// the component's own parameters.
void check_param_rules(const Json& values, const ParamsPlace& place, const std::vector<ParamRule>& rules,
                       Problems& problems, const Json* overrides = nullptr);

}  // namespace capstan
