#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/zero/gradient_hooks.hpp"
#include "core/zero/sharding.hpp"
#include "core/zero/sparse_rows.hpp"

namespace capstan {

class StoredGradients;

/// The trainable parameters, and how their gradients add up.
struct GradientOptions {
  std::vector<at::Tensor> parameters;  // the model's own
  std::vector<std::string> names;
  at::ScalarType accumulation = at::kFloat;
  bool accumulates_apart = false;  // gradients add up in another type than the parameters'
  bool sparse = false;             // gradients may come as sparse tensors
  bool sparse_rows = false;        // the optimizer takes the rows that sparse gradients have
  /// Called as soon as what this rank updates of parameter i's gradient is complete, contiguous, perhaps while backward
  /// goes on, and again where more is added to it. Null: nobody asks. [a thread of backward or of the reduction]
  std::function<void(std::size_t i, const at::Tensor& gradient)> complete;
};

/// The gradients of the step under way, one for each trainable parameter: a gradient adds up over micro-batches and,
/// where several processes train, is averaged over the ranks. kept() and flat() give a gradient after the step's last
/// backward, collect() the gradients that the update takes. [engine]
class StepGradients {
 public:
  explicit StepGradients(GradientOptions options);
  virtual ~StepGradients() = default;

  /// Called around the backward of a micro-batch; see ParameterStore::begin_backward().
  virtual void begin_backward(const std::string& step, bool last, bool local, const std::vector<std::size_t>& left_out);
  virtual void end_backward() = 0;
  /// The gradient of parameter i becomes zero where the step gave none.
  virtual void give_zeros(std::size_t i) = 0;
  /// Some rank has had a gradient of the parameters whose element is not 0.
  virtual void set_present(const std::vector<std::uint8_t>& present);

  /// Whether gradients stay each rank's own in this step.
  virtual bool local() const { return false; }
  /// Whether the gradient of parameter i is on a store.
  virtual bool stored(std::size_t i) const;
  /// Whether this rank has had a gradient of parameter i in this step.
  virtual bool is_here(std::size_t i) = 0;
  /// The gradient of what this rank updates of parameter i, of any layout and type. Undefined where there is none, or
  /// where it is on a store.
  virtual at::Tensor kept(std::size_t i) = 0;
  /// kept(), made dense and of one dimension in its own memory. Undefined also where the gradient is sparse and sparse
  /// gradients are refused.
  virtual at::Tensor flat(std::size_t i) = 0;
  /// Makes `values`, as many as kept() has, the gradient of parameter i.
  virtual void set(std::size_t i, const at::Tensor& values) = 0;
  /// This step has no gradient of parameter i: the values that an earlier step left are forgotten.
  virtual void forget(std::size_t i);

  /// Collects the gradients that the update takes; the tensors are contiguous, and valid until drop(). Throws
  /// RuntimeFault for a sparse gradient where sparse gradients are refused.
  const std::vector<const at::Tensor*>& collect();
  /// The gradient of parameter i that collect() found; null where there is none here, or where it is on a store.
  const at::Tensor* collected(std::size_t i) const { return to_update_[i]; }
  /// Whether collect() found a gradient of what this rank updates of parameter i, here or on a store.
  bool has(std::size_t i) const { return has_[i] != 0; }
  /// Whether any rank has a gradient of parameter i; valid after collect().
  virtual bool on_any_rank(std::size_t i) const { return has(i); }
  /// The gradient of parameter i as a visitor may see it at any time: with several processes from collect() on.
  virtual at::Tensor& shown(std::size_t i) = 0;
  /// The rows that sparse gradients have; null where the optimizer takes no rows.
  virtual const SparseRows* rows() const = 0;

  /// Forgets the gradients of the step. `applied`: see ParameterStore::drop_gradients().
  virtual void drop(bool applied);
  /// Waits until nothing is exchanged between ranks. Throws RuntimeFault.
  virtual void settle() {}
  /// Waits until the gradients that belong on a store are there. Throws RuntimeFault.
  virtual void settle_store() {}

 protected:
  /// Whether the update takes a gradient of parameter i. Makes shown(i) that gradient.
  virtual bool prepare(std::size_t i) = 0;
  /// Whether an update of this rank needs a gradient of parameter i that is on a store.
  virtual bool stored_is_wanted(std::size_t) const { return false; }

  const GradientOptions options_;

 private:
  std::vector<std::uint8_t> has_;
  std::vector<const at::Tensor*> to_update_;
  std::vector<const at::Tensor*> present_;     // the elements of to_update_ that are not null
  std::vector<at::Tensor> contiguous_copies_;  // stand in for gradients that are not contiguous
};

/// The gradients of a process that trains alone: autograd adds them up, or a sum beside where the types differ.
class OneProcessGradients final : public StepGradients {
 public:
  explicit OneProcessGradients(GradientOptions options);

  void begin_backward(const std::string& step, bool last, bool local,
                      const std::vector<std::size_t>& left_out) override;
  void end_backward() override;
  void give_zeros(std::size_t i) override;
  bool is_here(std::size_t i) override { return shown(i).defined(); }
  at::Tensor kept(std::size_t i) override { return shown(i); }
  at::Tensor flat(std::size_t i) override;
  void set(std::size_t i, const at::Tensor& values) override;
  at::Tensor& shown(std::size_t i) override;
  const SparseRows* rows() const override { return rows_ ? &*rows_ : nullptr; }
  void drop(bool applied) override;

 private:
  bool prepare(std::size_t i) override;
  void absorb(std::size_t i);
  void arrived(std::size_t i);

  std::vector<at::Tensor> accumulated_;  // sums over micro-batches; undefined where autograd's own sum counts
  bool last_ = false;                    // within the step's last backward
  std::optional<SparseRows> rows_;
  std::optional<GradientHooks> hooks_;  // where somebody asks for complete gradients
};

/// The gradients of a process that holds parts, or trains with others: a GradientReducer averages them.
class ReducedGradients final : public StepGradients {
 public:
  struct Options {
    Sharding* sharding = nullptr;
    StoredGradients* store = nullptr;  // null: all gradients are in memory
    std::vector<bool> stored;          // one a parameter: the gradient is on that store
    std::vector<bool> updates;         // one a parameter: this rank updates elements of it
    bool every_slot = false;           // the optimizer gets a slot also for what has no gradient, or no part here
  };
  /// Sharding and store must outlive this.
  ReducedGradients(GradientOptions options, Options reduced);
  ~ReducedGradients() override;

  void begin_backward(const std::string& step, bool last, bool local,
                      const std::vector<std::size_t>& left_out) override;
  void end_backward() override { reducer_.end(); }
  void give_zeros(std::size_t i) override { reducer_.give_zeros(i); }
  void set_present(const std::vector<std::uint8_t>& present) override;
  bool local() const override { return reducer_.local(); }
  bool stored(std::size_t i) const override { return reduced_.stored[i]; }
  bool is_here(std::size_t i) override { return reducer_.touched()[i] != 0; }
  at::Tensor kept(std::size_t i) override { return reducer_.gradient(i); }
  at::Tensor flat(std::size_t i) override { return kept(i); }
  void set(std::size_t i, const at::Tensor& values) override;
  void forget(std::size_t i) override { kept(i).zero_(); }
  bool on_any_rank(std::size_t i) const override { return !present_.empty() && present_[i] != 0; }
  at::Tensor& shown(std::size_t i) override { return shown_[i]; }
  const SparseRows* rows() const override { return reducer_.sparse_rows(); }
  void drop(bool applied) override;
  void settle() override { reduced_.sharding->settle(); }
  void settle_store() override;

 private:
  bool wanted(std::size_t i) const { return on_any_rank(i) && reduced_.updates[i]; }
  bool prepare(std::size_t i) override;
  bool stored_is_wanted(std::size_t i) const override { return wanted(i); }

  Options reduced_;
  GradientReducer& reducer_;
  std::vector<std::uint8_t> present_;  // empty: no rank has told yet
  std::vector<at::Tensor> shown_;
};

}  // namespace capstan
