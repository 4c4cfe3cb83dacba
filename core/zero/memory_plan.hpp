#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/zero/coded_parts.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

/// A state of the optimizer that has one value for `block` elements.
struct PlannedBlockState {
  std::int64_t block = 1, bytes = 0;  // of a value
};

/// The facts of one parameter from which memory and traffic follow.
struct PlannedParameter {
  std::int64_t numel = 0;
  bool trainable = true;
  bool movable = true;  // alone in its storage
  std::vector<std::int64_t> shape;
  std::int64_t built_bytes = 0;        // as the model makes it
  std::int64_t state_bytes = 0;        // bytes of the optimizer's state for each element
  std::int64_t fixed_state_bytes = 0;  // bytes of the optimizer's state for the parameter as a whole
  std::vector<PlannedBlockState> block_states;
  bool compressed = false;          // compressions fill the compute copy from a master of its own
  std::int64_t mask_bytes = 0;      // of the compressions' states that are not trained, for each element
  bool given = false;               // its gradient is made from another's, and does not travel
  std::optional<std::size_t> like;  // cut as that trainable parameter is
  std::optional<CodeFormat> codes;  // how it travels at stage 3 once they act; without: as values

  /// Bytes of the optimizer's states for `elements` of it that begin at the start of a block.
  std::int64_t bytes_of_states(std::int64_t elements) const;
};

/// The facts of a training run from which its memory and traffic follow: shapes and a configuration, without tensors
/// and without a model.
struct PlannedRun {
  std::vector<PlannedParameter> parameters;  // the model's order
  std::int64_t buffer_bytes = 0;             // the model's buffers, and parameters that are not floating-point
  std::int64_t model_state_bytes = 0;        // the optimizer's states of the whole model, alike on every rank
  // Bytes of an element as the model computes, as gradients add up, as they travel.
  std::int64_t compute_bytes = 4, accumulation_bytes = 4, communication_bytes = 4;
  std::int64_t master_bytes = 4;      // of an element as masters are kept; as many as compute_bytes: one tensor is both
  std::int64_t wide_bytes = 0;        // of an element of the tile that shows in fp32 what is kept in 16 bits
  bool whole_parameters = false;      // the optimizer cannot have parts of a parameter
  bool can_be_partitioned = true;     // false: every rank updates everything at every stage
  std::int64_t measures = 0;          // numbers a block of 32,768 elements that the optimizer adds up over ranks
  std::int64_t statistics_bytes = 0;  // what rank 0 tells each other rank of compressed weights an update
  bool norm = true;                   // each step needs the gradients' norm
  std::int64_t micro_steps = 1;       // micro-batches a step
  int world = 1, local_world = 1;     // processes, and those of them on one host
  /// Parameters in the order in which operators use them in a micro-batch; empty: as Stage3Plan::follow() takes it to
  /// be.
  std::vector<std::size_t> uses;
  bool on_device = false;        // a device trains, whose memory is not the host's
  bool updates_on_host = false;  // and the optimizer updates in host memory though nothing is offloaded
  bool optimizer_in_memory = false, parameters_in_memory = false;  // their stores keep what they hold in host memory
  ZeroConfig zero;

  std::int64_t elements() const;
  std::int64_t trainable_elements() const;
};

/// The memory in which something is kept: that of the device on which the model computes, host memory, a store of kind
/// offload, which is a disk unless PlannedRun says otherwise.
enum class MemoryTier { kMemory, kHost, kDisk };

struct ZeroChoice {
  int stage = 0;
  MemoryTier optimizer = MemoryTier::kMemory,
             parameters = MemoryTier::kMemory;  // offload_optimizer.device, offload_param.device
  bool operator==(const ZeroChoice&) const = default;
};

/// What the configuration chooses.
ZeroChoice configured_choice(const Config& config);
/// Every stage with every offload that DeepSpeed's keys allow there.
std::vector<ZeroChoice> zero_choices();

struct PlannedBytes {
  std::string what;
  std::int64_t bytes = 0;
  MemoryTier tier = MemoryTier::kMemory;
};

/// Memory of one rank, of the one that has most. Not in it: what forward keeps for backward, the program itself, and
/// freed memory that the C library's heap keeps (up to 64 MB).
struct MemoryPlan {
  std::vector<PlannedBytes> items;  // while it trains
  std::int64_t building = 0;        // while the model is built and cast, in `kMemory`; 0: less than training

  std::int64_t training(MemoryTier tier) const;
  /// The most at any time.
  std::int64_t peak(MemoryTier tier) const;
};

/// Stages 0 to 2 as the engine allocates: parameters in the compute type, gradients in the accumulation type, fp32
/// masters where the compute type is another, the optimizer's states, and what exchanges need. With mixed precision
/// Adam and P parameters on W ranks these are 16 P, 4 P + 12 P / W, 2 P + 14 P / W and 16 P / W bytes for stages 0 to
/// 3; with masters of 16 bits 14 P, 4 P + 8 P / W, 2 P + 10 P / W and 12 P / W, with moments of 16 bits 4 P less of
/// what is P / W, beside the tile that shows them in fp32. Beside that buckets and live parameters, of which
/// Stage3Plan::follow() says how many there are. What is offloaded passes through the tiles of offload_staging(). Stage
/// 3 with one process is stage 3 where parameters are offloaded.
MemoryPlan plan_memory(const PlannedRun& run, const ZeroChoice& choice);

/// The partition of the trainable parameters over the ranks.
Partition planned_partition(const PlannedRun& run);

/// One collective of a step.
struct PlannedTraffic {
  std::string what;
  std::string collective;          // as Communicator::traffic() counts it
  std::int64_t bytes = 0;          // bytes that rank 0 sends in a step
  std::int64_t between_nodes = 0;  // the share of `bytes` that goes to ranks of other hosts
};

/// What rank 0 sends in a step at that stage, to the byte; at stage 3 for a model that uses its parameters as
/// Stage3Plan::follow() takes it to, which matters where not all of them are kept. Nothing with one process.
std::vector<PlannedTraffic> plan_traffic(const PlannedRun& run, int stage);

}  // namespace capstan
