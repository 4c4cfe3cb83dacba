#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/interceptor.hpp"

namespace capstan {

/// The dtypes of autocast on the host, on CUDA, and on an accelerator under PrivateUse1.
using AutocastTypes = std::array<c10::ScalarType, 3>;

/// What a region is told of, and where its boundary waits between forward and backward. Calls come from the thread that
/// trains and from those of autograd, one at a time.
class RegionKeeper {
 public:
  virtual ~RegionKeeper() = default;
  enum class Moment { kBegin, kEnd, kReleased };
  virtual void moment(Moment) {}
  /// Whether the boundary goes to pack(); else it stays in memory.
  virtual bool packs() const { return false; }
  virtual std::uint64_t pack(const at::Tensor& boundary) = 0;
  virtual at::Tensor unpack(std::uint64_t id) = 0;
  virtual void drop(std::uint64_t id) noexcept = 0;
};

/// The operators of a region, in order, with what they need to run again and who waits for what they compute.
///
/// A tensor is known as the value of an operator that runs again, or as an external: what the region found, or what an
/// operator made that does not run again. Externals are kept, detached from the graph, whose nodes hold the tape.
class Tape {
 public:
  /// A place that backward will look into. Whoever holds it wants it filled.
  struct Slot {
    at::Tensor tensor;
    std::optional<std::uint64_t> digest;  // of what forward had there
  };
  struct Operand {
    enum class Kind : std::uint8_t { kNone, kValue, kExternal };
    Kind kind = Kind::kNone;
    bool requires_grad = false;
    std::int32_t index = -1;
  };
  struct Argument {
    enum class Kind : std::uint8_t { kPlain, kTensor, kTensors, kOptionalTensors };
    Kind kind = Kind::kPlain;
    std::size_t count = 1;  // tensors of a list
    c10::IValue plain;
  };
  /// An operator; or memory without values, when it has none.
  struct Entry {
    std::optional<c10::OperatorHandle> op;
    std::vector<Argument> arguments;
    std::vector<Operand> operands;      // the tensors of all arguments, in order
    std::vector<std::int32_t> results;  // of each tensor among the results: its value; -1: none
    std::vector<std::int32_t> writes;   // memories of values, whose elements it changes
    c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    bool grad_mode = false;
    at::Generator generator;  // random operators: what they draw from, and its state before
    at::Tensor generator_state;
    std::vector<std::int64_t> sizes, strides;  // memory without values
    at::TensorOptions options;
  };
  struct External {
    at::Tensor tensor;
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    std::uint32_t version = 0;
    bool copied = false;  // the elements as they were before an operator wrote them
  };
  /// Fills a slot once the entry has had its turn: with a value or an external, or with what the operator saves itself.
  struct Fill {
    std::int32_t after = -1, writer = -1;  // entries: -1 before the first; whose elements are there
    Operand operand;
    std::int32_t saved = -1;  // the number of the tensor among those that the operator saves
    std::weak_ptr<Slot> slot;
  };

  /// `inside`: the policies that the region's operators ran under; null: none. Must outlive the tape.
  Tape(std::string layer, OperatorPolicy* inside, std::unique_ptr<RegionKeeper> keeper);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const std::string& layer() const { return layer_; }

  // While the region is open; one thread.
  std::vector<Entry>& entries() { return entries_; }
  std::vector<External>& externals() { return externals_; }
  std::vector<Fill>& fills() { return fills_; }
  std::int32_t add_value(std::int32_t memory);
  std::int32_t memory_of(std::int32_t value) const { return memory_of_[static_cast<std::size_t>(value)]; }
  /// The external that is the region's boundary.
  void set_boundary(std::int32_t external) { boundary_ = external; }
  std::int32_t boundary() const { return boundary_; }
  bool packs_boundary() const { return keeper_ && keeper_->packs(); }
  /// Called before an operator writes this memory: externals there keep the elements that they have.
  void before_write(const c10::StorageImpl* storage);
  /// The region is over: lets go of all that nobody waits for, and packs the boundary.
  void close();

  /// Runs again what the slot, or any other that is waited for, needs. The slot is filled then. [any]
  void compute(Slot& slot);
  /// The engine ends: nothing can be computed any more, and the keeper is not called any more.
  void end();

 private:
  struct Plan {
    std::vector<bool> runs;              // an entry
    std::vector<std::int32_t> last_use;  // the entry after which a value is not needed; -1: never
    std::vector<bool> externals;         // which are needed
  };
  class Collector;
  Plan plan() const;
  void replay();
  void run_entry(const Entry& entry, std::vector<at::Tensor>& values) const;
  at::Tensor tensor_of(const Operand& operand, const std::vector<at::Tensor>& values) const;
  void fill(const Fill& fill, const at::Tensor& tensor) const;
  void check_externals(const Plan& plan) const;
  void fetch_boundary();

  std::string layer_;
  OperatorPolicy* inside_;
  std::unique_ptr<RegionKeeper> keeper_;
  AutocastTypes autocast_;
  std::mutex mutex_;  // guards all, once the region is closed
  std::vector<Entry> entries_;
  std::vector<External> externals_;
  std::vector<Fill> fills_;
  std::vector<std::int32_t> memory_of_;  // a value
  std::int32_t boundary_ = -1;
  std::optional<std::uint64_t> packed_;  // the boundary
  bool closed_ = false, ended_ = false;
};

/// XXH3 over a tensor's elements, in row-major order.
std::uint64_t digest_of(const at::Tensor& tensor);

}  // namespace capstan
