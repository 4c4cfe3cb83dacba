#pragma once

#include <memory>
#include <optional>
#include <vector>

namespace capstan {

class ParameterStore;

/// Holds parameters in memory, for code that reads or writes their values outside of forward and backward: at ZeRO
/// stage 3, and after a step with overlap_comm, they are away there. From Engine::gather; every rank opens and closes
/// it, in the same order. [engine]
class GatherScope {
 public:
  /// `open`: how many scopes of the engine are open; it lives as long as `store`.
  GatherScope(ParameterStore& store, const std::shared_ptr<std::size_t>& open, std::vector<std::size_t> parameters,
              std::optional<int> written_by);
  /// Closes; what goes wrong there is logged.
  ~GatherScope();
  GatherScope(GatherScope&& other) noexcept;
  GatherScope& operator=(GatherScope&&) = delete;

  /// All ranks take the values of the rank that wrote them, if one did, and the parameters may leave again. Throws
  /// RuntimeFault, also where the engine has ended meanwhile.
  void close();

 private:
  ParameterStore* store_;            // null: closed
  std::weak_ptr<std::size_t> open_;  // expired: the store is gone
  std::vector<std::size_t> parameters_;
  std::optional<int> written_by_;
};

}  // namespace capstan
