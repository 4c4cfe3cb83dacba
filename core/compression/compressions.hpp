#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/comm/communicator.hpp"
#include "core/compression/compression_plan.hpp"
#include "core/model/model.hpp"
#include "core/parameters/compressed_part.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// Values as codes: value = (code - zero point) * scale.
struct WeightCodes {
  GroupLayout layout;
  int bits = 0;
  bool has_zero_points = false;
  at::Tensor codes;                // int8, one an element of the part
  at::Tensor scales, zero_points;  // float32 and int32, one a group that the part meets
};

/// The components of kind "compression": what stands between masters and compute copies, and before operators. They act
/// one after the other, in the order that their manifests say. [engine]
class Compressions {
 public:
  void add(Component component);
  bool empty() const { return members_.empty(); }
  /// Asks all for their plans, once. Throws PluginError.
  void plan(Json modules);
  /// The modules that the plans were made for.
  const Json& modules() const { return modules_; }

  /// Whether the values of that parameter are compressed at some time.
  bool compresses(const std::string& parameter) const { return compressor_of(parameter) != nullptr; }
  /// Who does so, the first of several: "compression 'weight_quantization'"; null: none.
  const std::string* compressor_of(const std::string& parameter) const;
  /// The plan of the last compression that acts on a parameter after `updates` updates; null: none does.
  const CompressionPlan::Parameter* acting(const std::string& parameter, std::int64_t updates) const;
  /// Bytes of the statistics that all compressions of a parameter share of a part: those of groups that lie on several
  /// ranks.
  std::int64_t shared_bytes(const std::string& parameter, const Range& part) const;
  /// What the components say of their plans.
  std::vector<std::string> report() const;
  std::vector<std::string> warnings() const;

  /// Fills the compute copies of all compressed parameters after `updates` updates. `ranks`: where they update parts.
  void fill(const std::string& step, std::vector<CompressedPart>& parts, std::int64_t updates,
            Communicator* ranks) const;
  /// The codes of a whole parameter, float32, one dimension, as the last of its compressions makes them. Throws
  /// RuntimeFault where it has none after `updates` updates.
  WeightCodes encode(const std::string& parameter, const std::vector<std::int64_t>& shape, const at::Tensor& master,
                     std::int64_t updates) const;

  /// Modules whose operators get other inputs.
  std::vector<std::string> operands() const;
  /// Who plans the input of one of them, for messages: the key of the configuration that names the module, or else
  /// "compression 'activation_quantization'".
  std::string planner_of(const std::string& module) const;
  /// Fills `out` with what the operator of a module gets in place of `input`, both contiguous; false: nothing changes.
  bool operand(const std::string& module, const at::Tensor& input, std::int64_t updates, bool training,
               at::Tensor& out) const;
  /// A micro-batch of training begins. One before it that was not kept is forgotten.
  void begin_micro_batch();
  /// All have again the states before a micro-batch that has begun and was not kept.
  void forget_micro_batch();
  /// The micro-batch has had its backward.
  void keep_micro_batch();
  /// The micro-batches of a step are done; called by all ranks.
  void settle(std::int64_t updates);
  /// A step was given up: all have again the states that settle() or load() left.
  void abandon_step();

  /// {"<position> <type>": state} of those that keep a state, as settle() or load() left it.
  Json save() const { return settled_ ? *settled_ : states(); }
  void load(const Json& states);

 private:
  struct Member {
    explicit Member(Component made) : component(std::move(made)) {}
    Component component;
    std::string where;  // "compression 'weight_quantization'"
    CompressionPlan plan;
    const capstan_compression* table() const { return component.vtable<capstan_compression>(); }
    void* self() const { return component.self(); }
    bool active(std::int64_t updates) const;
    const CompressionPlan::Parameter* find(const std::string& parameter) const;
  };
  class Pass;
  /// The last compression that acts on a parameter after so many updates; null where none does.
  const Member* last_acting(const std::string& parameter, std::int64_t updates) const;
  std::string state_key(std::size_t position) const;
  /// The states as they are now, of a step under way too.
  Json states() const;
  void set_states(const Json& states) const;
  void check(const Member& member) const;

  std::vector<std::unique_ptr<Member>> members_;
  Json modules_;
  // While a step is under way: the states before it, and as the last micro-batch that was kept left them.
  std::optional<Json> settled_, kept_;
  bool trying_ = false;  // a micro-batch has begun and was not kept
};

}  // namespace capstan
