#include "core/registry/read_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/registry/parameter_role.hpp"
#include "core/schema/regular_expression.hpp"

namespace capstan {
namespace {

using Like = StateSpec::Like;
using Extent = StateSpec::Extent;

constexpr std::int64_t kMostDims = 64;  // LibTorch's own limit

const std::vector<std::string> kDtypes = {"float32", "bfloat16", "float16", "int64", "uint8", "int8", "param"};

/// Whether a parameter of that name is there and `fits`.
template <class Fits>
bool has_param(const std::vector<KeySpec>& params, const std::string& name, Fits fits) {
  return std::any_of(params.begin(), params.end(),
                     [&](const KeySpec& spec) { return spec.name == name && fits(spec); });
}

/// One string, or a list of them.
bool holds_text(const KeySpec& spec) {
  return spec.type == KeySpec::Type::kString ||
         (spec.type == KeySpec::Type::kArray && spec.element == KeySpec::Type::kString);
}

/// The regular expressions that a parameter has unless a configuration gives others.
void check_default_patterns(const ManifestTable& table, const std::vector<KeySpec>& params, const std::string& name) {
  for (const KeySpec& spec : params) {
    if (spec.name != name || !spec.fallback) continue;
    const Json::Array patterns = spec.fallback->is_array() ? spec.fallback->as_array() : Json::Array{*spec.fallback};
    for (const Json& pattern : patterns) {
      const std::string fault = pattern.is_string() ? expression_fault(pattern.as_string()) : "";
      if (!fault.empty()) table.fail("when_names", "the default of '" + name + "': " + fault);
    }
  }
}

void read_like(const ManifestTable& table, StateSpec& state) {
  const std::string like = table.choice("like", "param", {"param", "scalar", "share", "block", "row", "column"});
  state.like = like == "param"    ? Like::kParameter
               : like == "scalar" ? Like::kScalar
               : like == "share"  ? Like::kShare
               : like == "block"  ? Like::kBlock
               : like == "row"    ? Like::kRow
                                  : Like::kColumn;
  const Json* block = table.find("block");
  if (state.like != Like::kBlock) {
    if (block) table.fail("block", "is for like = 'block', and like is '" + like + "'.");
    return;
  }
  if (!block) {
    table.miss("block", "is missing: like = 'block' needs the number of elements that share a value.");
    return;
  }
  const std::int64_t elements = block->is_integer() ? block->as_integer() : 0;
  if (elements < 1 || elements > StateSpec::kLargestBlock || (elements & (elements - 1)) != 0) {
    table.fail("block", "must be a power of two from 1 to " + std::to_string(StateSpec::kLargestBlock) + ", got " +
                            block->dump() + ": parts of a parameter begin at multiples of " +
                            std::to_string(StateSpec::kLargestBlock) + " elements.");
  }
  state.block = elements;
}

void read_dtype(const ManifestTable& table, const std::vector<KeySpec>& params, StateSpec& state) {
  state.dtype = table.choice("dtype", "float32", kDtypes);
  state.dtype_from = table.text("dtype_from", "");
  if (state.dtype_from.empty()) return;
  const auto is_boolean = [](const KeySpec& spec) { return spec.type == KeySpec::Type::kBoolean; };
  if (!has_param(params, state.dtype_from, is_boolean)) {
    table.fail("dtype_from", "'" + state.dtype_from + "' is not a boolean parameter of this component.");
  }
  if (state.is_integral()) {
    table.fail("dtype_from", "cannot stand beside dtype = '" + state.dtype +
                                 "': the type that a model computes in "
                                 "would take the place of whole numbers.");
  }
}

void read_when(const ManifestTable& table, const std::vector<KeySpec>& params, StateSpec& state) {
  state.when = table.text("when", "");
  const auto is_number = [](const KeySpec& spec) {
    return spec.type == KeySpec::Type::kBoolean || spec.type == KeySpec::Type::kNumber;
  };
  if (!state.when.empty() && !has_param(params, state.when, is_number)) {
    table.fail("when", "'" + state.when + "' is not a boolean or numeric parameter of this component.");
  }
  state.when_names = table.text("when_names", "");
  if (!state.when_names.empty() && !has_param(params, state.when_names, holds_text)) {
    table.fail("when_names",
               "'" + state.when_names + "' is not a parameter of this component of type string or string[].");
  }
  for (const std::string& role : table.choices("when_roles", parameter_role_names())) {
    state.when_roles.push_back(*parameter_role_named(role));
  }
  check_default_patterns(table, params, state.when_names);
  state.when_min_numel = table.integer("when_min_numel", 0, 0, INT64_MAX);
  state.when_max_numel = table.integer("when_max_numel", INT64_MAX, 0, INT64_MAX);
  if (state.when_max_numel < state.when_min_numel) table.fail("when_max_numel", "is below when_min_numel.");
  const Json* dims = table.find("when_dims");
  if (!dims) return;
  const Json::Array list = dims->is_array() ? dims->as_array() : Json::Array{*dims};
  for (const Json& count : list) {
    if (!count.is_integer() || count.as_integer() < 0 || count.as_integer() > kMostDims) {
      table.fail("when_dims",
                 "must be a number of dimensions from 0 to 64, or a list of such numbers, got " + dims->dump() + ".");
      return;
    }
    state.when_dims.push_back(count.as_integer());
  }
  if (state.when_dims.empty()) table.fail("when_dims", "must not be empty: no parameter would have the state.");
}

void read_init(const ManifestTable& table, StateSpec& state) {
  table.knows("init", {"param"});
  const Json* init = table.find("init");
  if (!init) return;
  if (init->is_string() && init->as_string() == "param") {
    if (state.like != Like::kParameter || state.extent != Extent::kShard || state.is_integral()) {
      table.fail("init", "'param' is for a state with like = 'param', extent = 'shard' and a floating-point dtype.");
    }
    state.init_param = true;
    return;
  }
  if (!init->is_number()) return table.fail("init", "must be a number or \"param\", got " + init->dump() + ".");
  state.init = init->as_number();
  if (!state.is_integral()) return;
  const bool byte = state.dtype == "uint8", small = state.dtype == "int8";
  const double least = byte ? 0 : small ? -128 : -0x1p53, most = byte ? 255 : small ? 127 : 0x1p53;
  if (std::floor(state.init) != state.init || state.init < least || state.init > most) {
    table.fail("init", "must be a whole number" +
                           (byte    ? std::string(" from 0 to 255")
                            : small ? std::string(" from -128 to 127")
                                    : std::string()) +
                           " with dtype = '" + state.dtype + "', got " + init->dump() + ".");
  }
}

/// What the extent allows beside it.
void check_extent(const ManifestTable& table, const StateSpec& state) {
  const bool model = state.extent == Extent::kModel;
  if (state.like == Like::kShare && !state.per_rank) {
    table.fail("like", "'share' needs per_rank = true beside it.");
  }
  if (state.like == Like::kBlock && state.extent != Extent::kShard) {
    table.fail("like", "'block' needs extent = 'shard' beside it.");
  }
  if (state.is_factor() && state.extent != Extent::kShard) {
    table.fail("like", "'row' and 'column' need extent = 'shard' beside them.");
  }
  const auto& dims = state.when_dims;
  if (state.is_factor() && (dims.empty() || *std::min_element(dims.begin(), dims.end()) < 2)) {
    table.fail("when_dims",
               "must be given with like = 'row' or 'column', and be at least 2: other parameters have none.");
  }
  if (state.per_rank && !model) table.fail("per_rank", "needs extent = 'model' beside it.");
  if (state.per_rank && !state.reset_on_reshard) {
    table.fail("on_reshard",
               "must be 'reset' with per_rank = true: another number of ranks has no use for the values.");
  }
  for (const char* key : {"when_dims", "when_names", "when_roles", "when_min_numel", "when_max_numel"}) {
    if (model && table.find(key)) table.fail(key, "asks about one parameter, and extent = 'model' is for all of them.");
  }
}

}  // namespace

StateSpec read_state(const ManifestTable& table, const std::vector<KeySpec>& params) {
  StateSpec state;
  state.name = table.name("name");
  read_like(table, state);
  read_dtype(table, params, state);
  read_when(table, params, state);
  const std::string extent = table.choice("extent", "shard", {"shard", "full", "model"});
  state.extent = extent == "shard" ? Extent::kShard : extent == "full" ? Extent::kFull : Extent::kModel;
  read_init(table, state);
  state.per_rank = table.boolean("per_rank", false);
  state.reset_on_reshard =
      table.choice("on_reshard", state.per_rank ? "reset" : "reshard", {"reshard", "reset"}) == "reset";
  check_extent(table, state);
  state.scratch = table.boolean("scratch", false);
  table.reject_unread();
  return state;
}

}  // namespace capstan
