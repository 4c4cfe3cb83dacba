#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/elastic/launcher/link.hpp"

namespace capstan {

/// Those who have called a launcher and whom it does not know yet. What strangers can ask of a launcher is bounded: so
/// many at a time, for 2 s each, with 64 KiB each. [one thread]
class ElasticCallers {
 public:
  /// Callers at a time that have not proven that they have the secret.
  static constexpr std::size_t kMostUnproven = 32;

  /// Takes calls, and hears what callers say that have proven themselves: `answer` may reply, or take the connection
  /// over.
  using Answer = std::function<void(std::unique_ptr<ElasticLink>& caller, const Json& message)>;
  void hear(ElasticListener& listener, const Answer& answer);
  std::size_t count() const { return callers_.size(); }

 private:
  void admit(std::unique_ptr<ElasticLink> caller);
  void tell_of_other_secret(const ElasticLink& caller);

  std::vector<std::unique_ptr<ElasticLink>> callers_;  // in the order in which they came
  std::optional<std::chrono::steady_clock::time_point> told_at_;
};

}  // namespace capstan
