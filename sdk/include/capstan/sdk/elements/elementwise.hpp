#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "capstan/sdk/elements/block.hpp"
#include "capstan/sdk/optimizer.hpp"

namespace capstan::elements {

/// Runs kernels over slots: on LibTorch's threads when there is enough to do, reading gradients of 16 bits, keeping
/// states of 16 bits where asked to and writing the compute copy in the same pass. Results depend neither on how many
/// threads there are nor on how a parameter is cut into slots.
class ElementwiseUpdate {
 public:
  explicit ElementwiseUpdate(std::size_t slot_count);
  ~ElementwiseUpdate();
  ElementwiseUpdate(const ElementwiseUpdate&) = delete;

  /// Adds a slot, its states by their numbers in the manifest, in the kernel's order. `numbers` must live until run().
  void add(const sdk::Slot& slot, std::initializer_list<std::size_t> states, BlockKernel kernel, const void* numbers);
  /// Updates what was added. Once.
  void run() const;
  /// Runs kernels that only measure: `partials` gets `measures` sums a slot. Summed over fixed units in their order.
  void measure(std::span<double> partials, std::size_t measures) const;

 private:
  struct Work {
    float* param;
    sdk::Values grad;
    sdk::Values compute;
    sdk::Values states[kMaxStates];
    std::size_t state_count;
    std::size_t numel;
    BlockKernel kernel;
    const void* numbers;
    bool plain;  // in types that kernels take as they are
    std::int64_t first_unit;
  };

  /// Memory of this thread's last update. Allocating as much in each step makes malloc sort all that was freed since.
  static std::vector<Work>& kept();
  /// Elements [begin, end) of a slot; measures where there are `sums`.
  static void run(const Work& work, std::size_t begin, std::size_t end, double* sums = nullptr);
  static Block block_of(const Work& work, std::size_t begin, std::size_t end, double* sums);
  static void run_converting(const Work& work, std::size_t begin, std::size_t end, double* sums);
  std::vector<Work>::const_iterator work_of(std::int64_t unit) const;
  void run_units(std::int64_t begin, std::int64_t end) const;

  std::vector<Work> work_;
  std::int64_t units_ = 0;
};

}  // namespace capstan::elements
