#pragma once

#include <string>

#include "core/parameters/shared_home.hpp"

namespace capstan {

/// The home at ZeRO stages 1 and 2: every rank has all values, in one piece of memory where that is possible. With
/// overlap the values of the other ranks arrive while forward goes on.
class FlatHome final : public SharedHome {
 public:
  using SharedHome::SharedHome;

  OperatorPolicy* operator_policy() override;
  void settle() override;
  void share(const std::string& step) override;
  /// A parameter that could not be moved into the one piece has a second copy there.
  void note_written(std::size_t i, const at::Tensor& values) override;
};

}  // namespace capstan
