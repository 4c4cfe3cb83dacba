#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory/interceptor.hpp"
#include "core/memory/recompute/operator_facts.hpp"
#include "core/memory/recompute/saved_tensors.hpp"
#include "core/memory/recompute/tape.hpp"

namespace capstan {

/// Writes a region's tape while the region's operators run, and decides of each tensor that autograd saves whether it
/// is kept, or forgotten and computed again.
///
/// These operators do not run again, so that what they made is kept: those without a tensor to work on; those that give
/// memory without values, until another operator overwrites all of it; those that write what is not of the region, as
/// running statistics; those that `keep` names; what other threads run. A tensor whose elements something else has
/// changed (its version says so) is kept as well. One thread; one region at a time.
class Recorder final : public OperatorPolicy, public SavedTensorTaker {
 public:
  struct Region {
    std::shared_ptr<Tape> tape;
    std::set<std::string> keep;  // names of operators
    bool looks_inside = true;    // at the operators that composite ones call
    bool digests = false;        // of all that is forgotten
  };
  Recorder(Region region, std::vector<std::weak_ptr<Tape>>& tapes, OperatorBook& book);
  ~Recorder() override;

  /// The region's first hidden states.
  void begin(const at::Tensor& boundary);
  Tape& tape() { return *region_.tape; }

  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
  void returned(const c10::OperatorHandle& op, OperatorStack& stack) override;
  void after(const c10::OperatorHandle& op) noexcept override;
  bool looks_inside(const c10::OperatorHandle& op) override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;

  /// Operators and what autograd saves are recorded on the thread of this scope alone.
  class Here {
   public:
    explicit Here(Recorder* recorder);
    ~Here();
    Here(const Here&) = delete;

   private:
    Recorder* outer_;
  };
  /// The recorder of the innermost scope of this thread; null: none.
  static Recorder* here();

 private:
  class Hooks;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  /// A tensor that the tape knows. The weak pointer keeps the address from another tensor.
  struct Known {
    WeakTensor tensor;
    Tape::Operand operand;
  };
  /// A memory that tensors of the tape share. `own`: an operator that runs again has made it.
  struct Memory {
    WeakStorage storage;
    std::int32_t number = -1, last_writer = -1;
    std::uint32_t version = 0;
    bool own = false, lost = false;  // lost: something that does not run again has written it
  };
  /// Memory without values, that nobody has used so far.
  struct Empty {
    WeakTensor tensor;
    std::uint32_t version;
  };
  /// An operator of the region while it runs.
  struct Running {
    const OperatorFacts* facts = nullptr;
    bool recorded = false;
    std::int32_t saved = 0;                      // tensors that it has saved so far
    std::vector<std::size_t> own;                // fills of tensors that are not known yet
    std::vector<const c10::TensorImpl*> own_of;  // those tensors
    std::vector<at::Tensor> written;
  };

  Memory* memory_of(const at::Tensor& tensor);
  Memory& add_memory(const at::Tensor& tensor, bool own);
  bool is_own(const at::Tensor& tensor);
  Tape::Operand operand_of(const at::Tensor& tensor);
  Tape::Operand known_operand(const at::Tensor& tensor);
  void digest_again(std::int32_t value, const at::Tensor& tensor);
  Tape::Operand add_external(const at::Tensor& tensor);
  bool promote(const at::Tensor& tensor);
  bool writes_outside(const OperatorStack& stack, std::size_t argument_count);
  void add_entry(const c10::OperatorHandle& op, const OperatorStack& stack, std::size_t argument_count);
  void add_result(Tape::Entry& entry, const at::Tensor& tensor);
  void settle_saved();
  void pack(const at::Tensor& tensor, Hooks& hooks);
  std::shared_ptr<Tape::Slot> add_fill(Tape::Operand operand, std::int32_t saved, const at::Tensor& tensor);
  std::int32_t last_entry() { return static_cast<std::int32_t>(tape().entries().size()) - 1; }

  Region region_;
  std::vector<std::weak_ptr<Tape>>& tapes_;
  OperatorBook& book_;
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::unordered_map<const c10::StorageImpl*, Memory> memories_;
  std::unordered_map<const c10::TensorImpl*, Empty> empties_;
  std::unordered_map<std::int32_t, std::weak_ptr<Tape::Slot>> slots_;  // of values
  std::int32_t memory_count_ = 0;
  Running running_;
};

}  // namespace capstan
