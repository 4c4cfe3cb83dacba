#include "core/zero/arriving_parameters.hpp"

#include <utility>

#include "core/host_words.hpp"
#include "core/memory/operands.hpp"
#include "core/memory/remote_storage.hpp"

namespace capstan {

ArrivingParameters::ArrivingParameters(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
                                       const FlatParameters& flat, Communicator& communicator, WorkQueue& queue)
    : flat_(flat), communicator_(communicator), queue_(queue) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = parameters_.emplace_back();
    parameter.last_call = flat.calls_of(i).first;  // they are made in reverse
    if (!flat.moved(i)) continue;
    parameter.storage = parameters[i].storage();
    parameter.sentence = "the values of parameter '" + names[i] +
                         "' are still coming from the ranks that updated them: with overlap_comm that goes on until "
                         "the next forward uses them. Code that reads them before needs them held: " +
                         host_words().gather + ".";
    parameter_at_.emplace(parameter.storage.unsafeGetStorageImpl(), i);
  }
}

void ArrivingParameters::start(const std::string& step) {
  std::vector<WorkQueue::Ticket> tickets(flat_.calls());
  // Backward gives the gradients of what forward uses last first.
  for (std::size_t call = flat_.calls(); call-- > 0;) {
    tickets[call] = queue_.submit([this, step, call] { flat_.gather(communicator_, step, call); });
  }
  for (Parameter& parameter : parameters_) {
    parameter.ticket = tickets[parameter.last_call];
    if (!parameter.storage || parameter.memory) continue;  // one that a gather which failed has left away stays so
    c10::StorageImpl& storage = *parameter.storage.unsafeGetStorageImpl();
    parameter.memory = storage.set_data_ptr(at::DataPtr(nullptr, storage.device()));
    drop_memory(storage, parameter.sentence);
  }
  missing_ = parameter_at_.size();
}

void ArrivingParameters::arrive(Parameter& parameter) {
  if (!parameter.memory) return;
  queue_.wait(parameter.ticket);
  restore_memory(*parameter.storage.unsafeGetStorageImpl(), std::exchange(parameter.memory, at::DataPtr()));
  --missing_;
}

void ArrivingParameters::settle() {
  if (!under_way()) return;
  const std::lock_guard lock(mutex_);
  for (Parameter& parameter : parameters_) arrive(parameter);
}

void ArrivingParameters::before(const c10::OperatorHandle&, OperatorStack& stack, std::size_t argument_count) {
  if (!under_way()) return;
  for_each_operand(stack, argument_count, [&](const at::Tensor& operand, std::size_t) {
    if (!operand.defined() || !operand.has_storage()) return;
    const auto found = parameter_at_.find(operand.storage().unsafeGetStorageImpl());
    if (found == parameter_at_.end()) return;
    const std::lock_guard lock(mutex_);
    arrive(parameters_[found->second]);
  });
}

}  // namespace capstan
