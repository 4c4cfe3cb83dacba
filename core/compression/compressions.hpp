#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/comm/communicator.hpp"
#include "core/compression/compression_plan.hpp"
#include "core/compression/piece_ranks.hpp"
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

/// A state of a compression that checkpoints hold beside the parameters.
struct CompressionState {
  std::string by;                   // the compression, as begin_anew() takes it
  std::string parameter;            // of which there is a value an element; empty for a whole state
  std::string state;                // "sparse_pruning.mask", "row_pruning.mask of blocks.0.fc.weight"
  std::vector<std::int64_t> shape;  // of the whole
  at::Tensor values;                // of this rank's part, or whole
};

/// Which indices of an axis are left of a tensor once training is over.
struct KeptAxis {
  std::string tensor, by;  // "blocks.0.fc.weight", "compression 'row_pruning'"
  std::int64_t axis = 0, of = 0;
  std::vector<std::int64_t> kept;
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
  /// The same of the last one that gives codes of it: those that act after it, if any, are masks of its values.
  const CompressionPlan::Parameter* coder(const std::string& parameter, std::int64_t updates) const;
  /// Whether any compression acts on a parameter after `updates` updates.
  bool acts(const std::string& parameter, std::int64_t updates) const {
    return last_acting(parameter, updates) != nullptr;
  }
  /// Bytes of the statistics that all compressions of a parameter share of a part: those of groups that lie on several
  /// ranks.
  std::int64_t shared_bytes(const std::string& parameter, const Range& part) const;
  /// Bytes of the states of a parameter that are not trained, for each of its elements.
  std::int64_t bytes_an_element(const std::string& parameter) const;
  /// What the components say of their plans.
  std::vector<std::string> report() const;
  std::vector<std::string> warnings() const;

  /// The states that the optimizer trains, as parameters of their own.
  std::vector<const CompressionPlan::State*> trained() const;
  /// The parameter that a trained state belongs to.
  std::string parent_of(const std::string& trained) const;
  bool is_trained_state(const std::string& parameter) const { return !parent_of(parameter).empty(); }
  /// The states of this rank; the tensors are the very ones that compressions read.
  std::vector<CompressionState> states_to_save() const;
  /// The same of a parameter, by the name that states_to_save() gives; to load those of a checkpoint.
  using ReadState = std::function<at::Tensor(const std::string& parameter, const std::string& state)>;

  /// Has a compression make what it makes of initial values anew with the next fill().
  void begin_anew(const std::string& by) { anew_.insert(by); }
  /// Prepares the states and fills the compute copies of all compressed parameters after `updates` updates. `fresh`:
  /// what is made of initial values is made anew. `ranks`: where they update parts.
  void fill(const std::string& step, CompressedParts& parts, std::int64_t updates, bool fresh, Communicator* ranks);
  /// Whether some compression changes gradients, or looks at them.
  bool uses_gradients() const;
  /// Lets compressions change the gradients that `parts` have, before their norm is taken, and fill those of trained
  /// states. gradient * grad_scale is the mean gradient.
  void change_gradients(const std::string& step, CompressedParts& parts, double grad_scale, std::int64_t updates,
                        Communicator* ranks);
  /// Shows them the gradients of an update that will be made.
  void before_update(const std::string& step, CompressedParts& parts, double grad_scale, std::int64_t updates,
                     Communicator* ranks);
  /// What capstan_host's functions for compressions use, within the functions that may call them. Throws RuntimeFault
  /// elsewhere.
  const PieceRanks& piece_ranks() const;
  /// What the compressions leave of the model's tensors.
  std::vector<KeptAxis> keep(std::int64_t updates, const ReadState& read) const;
  /// What the compressions make of a whole parameter, float32, one dimension; undefined: none of them acts.
  at::Tensor transformed(const std::string& parameter, const std::vector<std::int64_t>& shape, const at::Tensor& master,
                         std::int64_t updates, const ReadState& read) const;
  /// The codes of a whole parameter, float32, one dimension, as the last of its compressions that gives some makes
  /// them. Throws RuntimeFault where none does after `updates` updates.
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
  /// operand() of a use in training that is over, with the states that it left; nothing sees the input.
  bool operand_as_then(const std::string& module, const at::Tensor& input, std::int64_t updates, const Json& then,
                       at::Tensor& out) const;
  /// {"<position> <type>": state} of those that keep a state, as they are now, of a step under way too.
  Json states() const;
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

  /// The states of those that keep one, as texts by state_key(), as settle() or load() left them.
  Json save() const { return settled_ ? *settled_ : states(); }
  /// Compressions whose state is not among them stay as they are.
  void load(const Json& states);
  /// The names of the states that save() gives and load() takes.
  std::vector<std::string> state_keys() const;

 private:
  struct Member {
    explicit Member(Component made) : component(std::move(made)) {}
    Component component;
    std::string where;  // "compression 'weight_quantization'"
    CompressionPlan plan;
    std::string key;                                        // of its states in checkpoints: "sparse_pruning"
    std::map<std::string, std::vector<at::Tensor>> states;  // by parameter, in the plan's order
    /// States as a piece shows them: `handles` are those of `tensors`.
    struct Shown {
      std::vector<at::Tensor> tensors;
      std::vector<capstan_tensor> handles;
    };
    /// Of elements [from, from + count) of this rank's part of a parameter.
    Shown shown(const std::string& parameter, std::int64_t from, std::int64_t count) const;
    const capstan_compression* table() const { return component.vtable<capstan_compression>(); }
    void* self() const { return component.self(); }
    bool active(std::int64_t updates) const;
    const CompressionPlan::Parameter* find(const std::string& parameter) const;
    /// The same where the compression acts after so many updates, with the bits that codes have then; null: it does
    /// not.
    const CompressionPlan::Parameter* acting(const std::string& parameter, std::int64_t updates);
  };
  class Pass;
  class PieceCall;
  /// While one lives, compressions may ask about pieces.
  class Asking {
   public:
    Asking(Compressions& compressions, const CompressedParts& parts, const std::string& step, Communicator* ranks);
    ~Asking();
    Asking(const Asking&) = delete;

   private:
    Compressions& compressions_;
  };
  /// The last compression that acts on a parameter after so many updates; null where none does.
  const Member* last_acting(const std::string& parameter, std::int64_t updates) const;
  const Member* last_coder(const std::string& parameter, std::int64_t updates) const;
  void set_states(const Json& states) const;
  void check(const Member& member) const;
  void bind(CompressedParts& parts);
  void gather_trained(const std::string& step, CompressedParts& parts, Communicator* ranks);
  void prepare(CompressedParts& parts, std::int64_t updates, bool fresh);
  void show_gradients(Member& member, CompressedParts& parts, double grad_scale, std::int64_t updates,
                      const std::vector<at::Tensor>& inputs, bool changes);
  std::vector<at::Tensor> values_before(const Member& until, const std::string& step, CompressedParts& parts,
                                        std::int64_t updates, Communicator* ranks) const;
  std::string saved_name(const Member& member, const std::string& parameter, const CompressionPlan::State& state) const;
  std::vector<at::Tensor> read_states(const Member& member, const std::string& parameter, bool elements,
                                      const ReadState& read) const;

  std::vector<std::unique_ptr<Member>> members_;
  std::set<std::string> anew_;               // those that begin anew
  std::unique_ptr<PieceRanks> piece_ranks_;  // while compressions may ask
  Json modules_;
  // While a step is under way: the states before it, and as the last micro-batch that was kept left them.
  std::optional<Json> settled_, kept_;
  bool trying_ = false;  // a micro-batch has begun and was not kept
};

/// Adds the states that the optimizer trains to the model's parameters.
void add_trained_states(const Compressions& compressions, std::uint64_t seed, Model& model);

}  // namespace capstan
