#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory/interceptor.hpp"
#include "core/zero/flat_parameters.hpp"
#include "core/zero/work_queue.hpp"

namespace capstan {

/// Stages 1 and 2 with overlap: what the ranks have updated goes to the others while the next forward begins, and an
/// operator waits for the parameters that it uses.
///
/// Until a parameter has arrived its storage has no memory, so that nothing can read what is half old and half new:
/// code that uses no operators, or runs them outside of forward, gets an exception that says so. Several threads may
/// run operators; everything else is for the thread that trains.
class ArrivingParameters final : public OperatorPolicy {
 public:
  /// `parameters`: those of `flat`. `communicator`, `queue` and `flat` must outlive this.
  ArrivingParameters(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
                     const FlatParameters& flat, Communicator& communicator, WorkQueue& queue);
  /// Drops what is under way: settle() before, or the parameters keep old values.
  ~ArrivingParameters() override = default;
  ArrivingParameters(const ArrivingParameters&) = delete;

  /// Starts to gather all parameters; the ones that forward is likely to use first come first. `step`: "step 12". What
  /// an earlier gather that failed has not brought is brought by this one.
  void start(const std::string& step);
  bool under_way() const { return missing_ > 0; }
  /// Waits until all parameters have arrived. Throws RuntimeFault; once a gather has failed, until the next start().
  void settle();
  /// Waits for the values that `flat` holds of parameter i. Throws RuntimeFault.
  void wait_for(std::size_t i) { queue_.wait(parameters_[i].ticket); }

  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
  void after(const c10::OperatorHandle&) noexcept override {}

 private:
  struct Parameter {
    c10::Storage storage;  // none for one that was not moved, whose own memory stays
    std::string sentence;  // thrown at code that asks for the memory before it arrives
    std::size_t last_call = 0;
    WorkQueue::Ticket ticket = 0;
    at::DataPtr memory;  // while it is under way
  };
  void arrive(Parameter& parameter);

  const FlatParameters& flat_;
  Communicator& communicator_;
  WorkQueue& queue_;
  std::vector<Parameter> parameters_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> parameter_at_;
  std::mutex mutex_;                      // guards tickets and memory
  std::atomic<std::size_t> missing_ = 0;  // parameters that are under way
};

}  // namespace capstan
