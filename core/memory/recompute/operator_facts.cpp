#include "core/memory/recompute/operator_facts.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/errors.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

/// In-place operators, of ATen's native_functions.yaml, that give every element of `self` a new value.
constexpr std::array kOverwriting{
    std::string_view("aten::bernoulli_"),   std::string_view("aten::normal_"), std::string_view("aten::uniform_"),
    std::string_view("aten::exponential_"), std::string_view("aten::cauchy_"), std::string_view("aten::log_normal_"),
    std::string_view("aten::geometric_"),   std::string_view("aten::random_"), std::string_view("aten::fill_"),
    std::string_view("aten::zero_"),        std::string_view("aten::copy_"),
};

bool is_tensor(const c10::TypePtr& type) { return type->isSubtypeOf(*c10::TensorType::get()); }

/// A tensor, an optional one, or a list of either.
bool holds_tensors(const c10::TypePtr& type) {
  if (is_tensor(type)) return true;
  for (const c10::TypePtr& inner : type->containedTypes()) {
    if (holds_tensors(inner)) return true;
  }
  return false;
}

/// A kernel of a device goes before the composite one. (One of the alias key Autograd does not.)
bool has_kernel_of_its_own(const c10::OperatorHandle& op) {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutogradCPU,
        c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutogradPrivateUse1}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

OperatorFacts look_up(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OperatorFacts facts;
  facts.name = schema.name();
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    // Batch and instance normalisation write their running statistics, which their schemas do not say.
    const bool statistics = argument.name() == "running_mean" || argument.name() == "running_var";
    facts.writes.push_back((alias != nullptr && alias->isWrite()) || statistics);
    facts.writes_any |= facts.writes.back();
    facts.takes_tensors |= holds_tensors(argument.type());
    facts.repeatable &= argument.type()->kind() != c10::TypeKind::StorageType &&
                        argument.type()->kind() != c10::TypeKind::StreamObjType;
  }
  for (const c10::Argument& result : schema.returns()) facts.gives_tensors |= holds_tensors(result.type());
  facts.composite =
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !has_kernel_of_its_own(op);
  facts.random = op.hasTag(at::Tag::nondeterministic_seeded);
  facts.allocates = facts.name.find("empty") != std::string::npos && !facts.writes_any;
  const bool out = !schema.arguments().empty() && schema.arguments().back().is_out();
  facts.overwrites = !out && std::find(kOverwriting.begin(), kOverwriting.end(), facts.name) != kOverwriting.end();
  return facts;
}

}  // namespace

const OperatorFacts& OperatorBook::of(const c10::OperatorHandle& op) {
  const auto found = facts_.find(&op.schema());
  return found != facts_.end() ? found->second : facts_.emplace(&op.schema(), look_up(op)).first->second;
}

void require_operator(const std::string& name, const std::string& where) {
  std::set<std::string> names;
  for (const c10::OperatorName& known : c10::Dispatcher::singleton().getAllOpNames()) {
    if (known.name == name || known.name == "aten::" + name) return;
    names.insert(known.name);
    if (known.name.rfind("aten::", 0) == 0) names.insert(known.name.substr(6));
  }
  const std::string near = suggestion(name, {names.begin(), names.end()});
  throw RuntimeFault(where + ": LibTorch has no operator '" + name + "', whose results could be kept." +
                     (near.empty() ? " Names are those of its schemas, \"aten::_softmax\"." : near));
}

}  // namespace capstan
