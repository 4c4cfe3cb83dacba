#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory/interceptor.hpp"
#include "core/memory/page_pool.hpp"
#include "core/memory/parameter_source.hpp"
#include "core/memory/use_trace.hpp"

namespace capstan {

/// Which parameters are in memory: those that an operator needs while it runs, those that will be needed soon, and
/// those that always stay.
///
/// What comes and goes is the memory of a storage, so that the model's tensors, views of them and what autograd has
/// saved stay valid. A storage that also holds anything else stays.
///
/// An operator that would write a parameter is refused unless the parameter is held: what it wrote would be lost with
/// the memory. A fetch that fails throws what the source threw, and leaves what it was to bring away and nothing
/// pinned; the next use fetches again. Several threads may run operators of one pass; everything else is for the thread
/// that trains.
class ParameterResidency final : public OperatorPolicy {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;   // the model's own
    bool stays = false;  // persistent: never leaves memory
  };
  enum class Pass { kTraining, kEvaluation };

  /// At first all parameters are in memory. `source` must outlive this object.
  ParameterResidency(const std::vector<Parameter>& parameters, ParameterSource& source, ResidencyLimits limits);
  ~ParameterResidency() override;
  ParameterResidency(const ParameterResidency&) = delete;

  /// Whether parameter i never leaves.
  bool stays(std::size_t i) const { return unit_of_[i] < 0; }

  /// A pass uses parameters from here on; each kind has a trace of its own.
  void begin_pass(Pass pass);
  /// Called when forward is over and others may use `source`: waits for the fetches that are under way. Throws what the
  /// first that failed threw, once: what it and others that failed were to bring is away.
  void settle();
  void end_pass();
  /// Gives back the memory of all parameters that may leave: their values are out of date.
  void drop();

  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
  void after(const c10::OperatorHandle& op) noexcept override;
  bool looks_inside(const c10::OperatorHandle& op) override;

  /// Keeps parameters (by their indices) in memory, for code that uses no operators or writes them. When a fetch fails
  /// and hold() throws, it holds none of them.
  void hold(const std::vector<std::size_t>& parameters);
  void let_go(const std::vector<std::size_t>& parameters);

 private:
  struct Unit;
  struct Use {
    std::size_t unit, position;
  };
  /// What one operator has pinned.
  struct Pinned {
    ParameterResidency* owner;
    std::vector<Use> uses;
  };
  static std::vector<Pinned>& pinned_here();

  struct Operator {
    bool view = false, looks_inside = false;
    std::vector<bool> writes;  // an argument
  };
  const Operator& facts(const c10::OperatorHandle& op);
  void use(const at::Tensor& operand, bool written, const c10::OperatorHandle& op, std::vector<std::size_t>& units);
  std::vector<Use> pin_operands(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count);
  void send_off_left_out();
  void pin(const std::vector<std::size_t>& units);
  void fetch(const std::vector<std::size_t>& units);
  at::DataPtr allocate(const c10::Storage& storage);
  std::vector<ParameterSource::Request> make_room(Unit& unit);
  void arrive(Unit& unit);
  bool comes(ParameterSource::Ticket ticket);
  void abandon(ParameterSource::Ticket failed);
  static std::string names_of(const std::vector<Unit*>& units);
  void leave(Unit& unit);
  UseTrace& trace() { return traces_[static_cast<std::size_t>(pass_)]; }

  ParameterSource& source_;
  PagePool pages_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<int> unit_of_;  // the unit of each parameter; -1: persistent
  std::unordered_map<const c10::StorageImpl*, std::size_t> unit_at_;
  std::mutex mutex_;                                     // guards what follows
  std::unordered_map<const void*, Operator> operators_;  // by their schemas
  std::vector<UseTrace> traces_;                         // one for each kind of pass
  Pass pass_ = Pass::kTraining;
  bool inside_ = false, warned_ = false;
  std::int64_t live_ = 0;  // elements that are in memory or being fetched
};

}  // namespace capstan
