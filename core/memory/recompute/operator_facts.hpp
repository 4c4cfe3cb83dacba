#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory/interceptor.hpp"

namespace capstan {

/// What recording an operator needs to know of it, by its schema.
struct OperatorFacts {
  std::string name;          // "aten::linear"
  std::vector<bool> writes;  // an argument
  bool writes_any = false;
  bool composite = false;   // LibTorch computes it by calling other operators, each of which takes gradients by itself
  bool random = false;      // draws from a generator
  bool allocates = false;   // gives memory without values
  bool overwrites = false;  // gives every element of its first argument a value that does not depend on the old one
  bool gives_tensors = false;  // among its results
  bool takes_tensors = false;  // among its arguments
  bool repeatable = true;      // what it needs can be kept and given to it again
};

/// Keeps them. For one thread.
class OperatorBook {
 public:
  const OperatorFacts& of(const c10::OperatorHandle& op);

 private:
  std::unordered_map<const void*, OperatorFacts> facts_;  // by their schemas
};

/// Whether LibTorch has an operator of that name, "aten::_softmax" or "_softmax". Throws RuntimeFault with the nearest
/// names where it has not; `where` begins the message.
void require_operator(const std::string& name, const std::string& where);

}  // namespace capstan
