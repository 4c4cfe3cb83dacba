// How compressions are asked about all pieces of this rank at once: to prepare states, to change gradients.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "core/compression/compressions.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

TrainedPart* find_trained(CompressedParts& parts, const std::string& name) {
  const auto found = std::find_if(parts.states.begin(), parts.states.end(),
                                  [&](const TrainedPart& part) { return part.name == name; });
  return found == parts.states.end() ? nullptr : &*found;
}

}  // namespace

Compressions::Asking::Asking(Compressions& compressions, const CompressedParts& parts, const std::string& step,
                             Communicator* ranks)
    : compressions_(compressions) {
  compressions.piece_ranks_ = std::make_unique<PieceRanks>(parts.parameters, ranks, step);
}

Compressions::Asking::~Asking() { compressions_.piece_ranks_.reset(); }

/// The pieces of one call.
class Compressions::PieceCall {
 public:
  explicit PieceCall(const Member& member) : member_(member) {}

  capstan_compressed& add(const std::string& name, const std::vector<std::int64_t>& shape, const Range& range,
                          const CompressionPlan::Parameter& plan, const at::Tensor& input) {
    shown_.push_back(member_.shown(name, 0, range.numel));
    capstan_compressed& piece = pieces_.emplace_back();
    piece.struct_size = sizeof piece;
    piece.name = as_str(name);
    piece.full_shape = shape.data();
    piece.full_dims = static_cast<std::uint32_t>(shape.size());
    piece.offset = static_cast<std::uint64_t>(range.offset);
    piece.numel = static_cast<std::uint64_t>(range.numel);
    piece.full_numel = static_cast<std::uint64_t>(plan.layout.numel);
    piece.groups = static_cast<std::uint64_t>(plan.layout.groups);
    if (input.defined()) piece.input = handle_of(input);
    piece.states = shown_.back().handles.data();
    piece.state_count = shown_.back().handles.size();
    return piece;
  }

  /// Room for the gradients of the last piece's states.
  std::vector<at::Tensor>& state_gradients() { return gradients_.emplace_back(); }
  void show_state_gradients(capstan_compressed& piece) {
    std::vector<capstan_tensor>& handles = handles_.emplace_back();
    for (const at::Tensor& gradient : gradients_.back()) {
      handles.push_back(gradient.defined() ? handle_of(gradient) : nullptr);
    }
    piece.state_grads = handles.data();
  }

  std::vector<const capstan_compressed*> pointers() const {
    std::vector<const capstan_compressed*> all;
    for (const capstan_compressed& piece : pieces_) all.push_back(&piece);
    return all;
  }

 private:
  const Member& member_;
  std::deque<capstan_compressed> pieces_;
  std::deque<Member::Shown> shown_;
  std::deque<std::vector<at::Tensor>> gradients_;
  std::deque<std::vector<capstan_tensor>> handles_;
};

Compressions::Member::Shown Compressions::Member::shown(const std::string& parameter, std::int64_t from,
                                                        std::int64_t count) const {
  Shown shown;
  const CompressionPlan::Parameter* own = find(parameter);
  const bool borrowed = own != nullptr && !own->states_of.empty();
  const std::string& owner = borrowed ? own->states_of : parameter;
  const CompressionPlan::Parameter* plan = find(owner);
  const auto found = states.find(owner);
  if (plan == nullptr || found == states.end()) return shown;
  for (std::size_t i = 0; i < plan->states.size(); ++i) {
    const at::Tensor& values = found->second[i];
    if (!plan->states[i].of_elements) {
      shown.tensors.push_back(values);
    } else if (borrowed || !values.defined()) {
      shown.tensors.emplace_back();
    } else {
      shown.tensors.push_back(values.numel() == count ? values : values.narrow(0, from, count));
    }
  }
  for (const at::Tensor& tensor : shown.tensors) {
    shown.handles.push_back(tensor.defined() ? handle_of(tensor) : nullptr);
  }
  return shown;
}

std::vector<const CompressionPlan::State*> Compressions::trained() const {
  std::vector<const CompressionPlan::State*> all;
  for (const auto& member : members_) {
    for (const std::string& name : member->plan.order) {
      for (const CompressionPlan::State& state : member->plan.parameters.at(name).states) {
        if (state.trained) all.push_back(&state);
      }
    }
  }
  return all;
}

std::int64_t Compressions::bytes_an_element(const std::string& parameter) const {
  std::int64_t bytes = 0;
  for (const auto& member : members_) {
    const CompressionPlan::Parameter* plan = member->find(parameter);
    if (plan == nullptr) continue;
    for (const CompressionPlan::State& state : plan->states) {
      if (state.of_elements && !state.trained) bytes += static_cast<std::int64_t>(c10::elementSize(state.dtype));
    }
  }
  return bytes;
}

std::string Compressions::parent_of(const std::string& trained) const {
  for (const auto& member : members_) {
    for (const auto& [name, parameter] : member->plan.parameters) {
      for (const CompressionPlan::State& state : parameter.states) {
        if (state.trained && state.parameter == trained) return name;
      }
    }
  }
  return "";
}

const PieceRanks& Compressions::piece_ranks() const {
  if (piece_ranks_) return *piece_ranks_;
  throw RuntimeFault("this is for a compression's functions prepare, gradient and before_update alone.");
}

/// Makes states that are not there yet, and finds those that the optimizer trains.
void Compressions::bind(CompressedParts& parts) {
  for (const auto& member : members_) {
    for (const CompressedPart& part : parts.parameters) {
      const CompressionPlan::Parameter* plan = member->find(part.name);
      if (plan == nullptr || plan->states.empty()) continue;
      std::vector<at::Tensor>& states = member->states[part.name];
      states.resize(plan->states.size());
      for (std::size_t i = 0; i < states.size(); ++i) {
        const CompressionPlan::State& state = plan->states[i];
        if (state.trained && state.of_elements) {
          const TrainedPart* trained = find_trained(parts, state.parameter);
          if (trained == nullptr || trained->master.numel() != part.range.numel) {
            throw RuntimeFault("state '" + state.parameter + "' does not lie where '" + part.name + "' does.");
          }
          states[i] = trained->master;
        } else if (!states[i].defined()) {
          states[i] = host_zeros({state.of_elements ? part.range.numel : state.numel}, state.dtype);
        }
      }
    }
  }
}

/// Whole trained states as the optimizer has left them, on every rank.
void Compressions::gather_trained(const std::string& step, CompressedParts& parts, Communicator* ranks) {
  std::vector<std::vector<at::Tensor>> pieces;
  for (const auto& member : members_) {
    for (const auto& [name, plan] : member->plan.parameters) {
      for (std::size_t i = 0; i < plan.states.size(); ++i) {
        const CompressionPlan::State& state = plan.states[i];
        if (!state.trained || state.of_elements) continue;
        const TrainedPart* trained = find_trained(parts, state.parameter);
        const at::Tensor& whole = member->states.at(name)[i];
        if (ranks == nullptr) {
          at::Tensor(whole).copy_(trained->master);
          continue;
        }
        std::vector<at::Tensor>& of_ranks = pieces.emplace_back();
        for (const Range& range : trained->of_ranks) of_ranks.push_back(whole.narrow(0, range.offset, range.numel));
        of_ranks[static_cast<std::size_t>(ranks->rank())].copy_(trained->master);
      }
    }
  }
  if (!pieces.empty()) ranks->all_gather(step + ", trained states of compressions", pieces);
}

void Compressions::prepare(CompressedParts& parts, std::int64_t updates, bool fresh) {
  for (const auto& member : members_) {
    if (!CAPSTAN_HAS(member->table(), prepare)) continue;
    PieceCall call(*member);
    for (const std::string& name : member->plan.order) {
      for (const CompressedPart& part : parts.parameters) {
        if (part.name != name) continue;
        capstan_compressed& piece =
            call.add(part.name, part.shape, part.range, member->plan.parameters.at(name), part.master);
        piece.master = handle_of(part.master);
      }
    }
    const auto pointers = call.pointers();
    const int anew = fresh || anew_.contains(member->key) ? 1 : 0;
    call_plugin(member->component.function("prepare"), member->where, [&](capstan_error* error) {
      return member->table()->prepare(member->self(), pointers.data(), pointers.size(), updates, anew, error);
    });
  }
  anew_.clear();
}

bool Compressions::uses_gradients() const {
  return std::any_of(members_.begin(), members_.end(), [](const std::unique_ptr<Member>& member) {
    const auto& parameters = member->plan.parameters;
    return CAPSTAN_HAS(member->table(), before_update) ||
           std::any_of(parameters.begin(), parameters.end(), [](const auto& one) { return one.second.gradient; });
  });
}

/// Calls gradient(), which `changes` the gradients, or before_update().
void Compressions::show_gradients(Member& member, CompressedParts& parts, double grad_scale, std::int64_t updates,
                                  const std::vector<at::Tensor>& inputs, bool changes) {
  struct Given {
    TrainedPart* part;
    at::Tensor whole;  // undefined where the part's own room was filled
  };
  std::vector<Given> given;
  PieceCall call(member);
  for (const std::string& name : member.plan.order) {
    const CompressionPlan::Parameter& plan = member.plan.parameters.at(name);
    for (std::size_t k = 0; k < parts.parameters.size(); ++k) {
      const CompressedPart& part = parts.parameters[k];
      if (part.name != name || !part.gradient.defined() || (changes && !plan.gradient)) continue;
      const at::Tensor& input = k < inputs.size() && inputs[k].defined() ? inputs[k] : part.master;
      capstan_compressed& piece = call.add(part.name, part.shape, part.range, plan, input);
      piece.grad = handle_of(part.gradient);
      piece.grad_scale = grad_scale;
      if (!changes || plan.states.empty()) continue;
      std::vector<at::Tensor>& gradients = call.state_gradients();
      for (const CompressionPlan::State& state : plan.states) {
        at::Tensor& gradient = gradients.emplace_back();
        if (!state.trained) continue;
        TrainedPart* trained = find_trained(parts, state.parameter);
        gradient = state.of_elements ? trained->gradient : host_zeros({state.numel}, at::kFloat);
        given.push_back({trained, state.of_elements ? at::Tensor() : gradient});
      }
      call.show_state_gradients(piece);
    }
  }
  const auto pointers = call.pointers();
  if (pointers.empty()) return;
  const capstan_compression* table = member.table();
  call_plugin(member.component.function(changes ? "gradient" : "before_update"), member.where,
              [&](capstan_error* error) {
                const auto function = changes ? table->gradient : table->before_update;
                return function(member.self(), pointers.data(), pointers.size(), updates, error);
              });
  for (const Given& one : given) {
    if (one.whole.defined()) {
      one.part->gradient.copy_(one.whole.narrow(0, one.part->range.offset, one.part->range.numel));
    }
    one.part->has_gradient = true;
  }
}

void Compressions::change_gradients(const std::string& step, CompressedParts& parts, double grad_scale,
                                    std::int64_t updates, Communicator* ranks) {
  const at::NoGradGuard no_grad;
  const Asking asking(*this, parts, step, ranks);
  // What was made last had the gradient of the forward itself.
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    if (!CAPSTAN_HAS((*member)->table(), gradient) || !(*member)->active(updates)) continue;
    show_gradients(**member, parts, grad_scale, updates, values_before(**member, step, parts, updates, ranks),
                   /*changes=*/true);
  }
}

void Compressions::before_update(const std::string& step, CompressedParts& parts, double grad_scale,
                                 std::int64_t updates, Communicator* ranks) {
  const at::NoGradGuard no_grad;
  const Asking asking(*this, parts, step, ranks);
  for (const auto& member : members_) {
    if (!CAPSTAN_HAS(member->table(), before_update)) continue;
    show_gradients(*member, parts, grad_scale, updates, {}, /*changes=*/false);
  }
}

std::string Compressions::saved_name(const Member& member, const std::string& parameter,
                                     const CompressionPlan::State& state) const {
  return member.key + "." + state.name + (state.of_elements ? "" : " of " + parameter);
}

std::vector<CompressionState> Compressions::states_to_save() const {
  std::vector<CompressionState> all;
  for (const auto& member : members_) {
    for (const auto& [parameter, states] : member->states) {
      const CompressionPlan::Parameter& plan = member->plan.parameters.at(parameter);
      for (std::size_t i = 0; i < states.size(); ++i) {
        const CompressionPlan::State& state = plan.states[i];
        if (state.trained) continue;
        all.push_back({member->key,
                       state.of_elements ? parameter : "",
                       saved_name(*member, parameter, state),
                       {state.numel},
                       states[i]});
      }
    }
  }
  return all;
}

/// The states of a parameter as a checkpoint has them; `elements`: those with a value an element too.
std::vector<at::Tensor> Compressions::read_states(const Member& member, const std::string& parameter, bool elements,
                                                  const ReadState& read) const {
  std::vector<at::Tensor> states;
  for (const CompressionPlan::State& state : member.plan.parameters.at(parameter).states) {
    at::Tensor& values = states.emplace_back();
    if (state.of_elements && !elements) continue;
    values = state.trained ? read(state.parameter, "param")
                           : read(state.of_elements ? parameter : "", saved_name(member, parameter, state));
    if (values.numel() != state.numel || values.scalar_type() != state.dtype) {
      throw RuntimeFault(member.where + ": its state '" + state.name + "' of '" + parameter + "' has " +
                         std::to_string(values.numel()) + " values of " + c10::toString(values.scalar_type()) +
                         " in the checkpoint, " + std::to_string(state.numel) + " of " + c10::toString(state.dtype) +
                         " in its plan. Use the plugin that trained it.");
    }
    values = values.view({-1});
  }
  return states;
}

namespace {

KeptAxis read_kept(const Json& json) {
  KeptAxis kept;
  kept.tensor = json.at("name").as_string();
  kept.axis = json.at("axis").as_integer();
  kept.of = json.at("of").as_integer();
  std::int64_t last = -1;
  for (const Json& index : json.at("kept").as_array()) {
    if (index.as_integer() <= last || index.as_integer() >= kept.of) {
      throw RuntimeFault("index " + index.dump() + " of '" + kept.tensor + "' is not above the one before it, or not " +
                         "below " + std::to_string(kept.of));
    }
    kept.kept.push_back(last = index.as_integer());
  }
  if (kept.kept.empty()) throw RuntimeFault("nothing is left of '" + kept.tensor + "'");
  return kept;
}

}  // namespace

std::vector<KeptAxis> Compressions::keep(std::int64_t updates, const ReadState& read) const {
  std::vector<KeptAxis> all;
  for (const auto& member : members_) {
    if (!CAPSTAN_HAS(member->table(), keep) || !member->active(updates)) continue;
    for (const std::string& name : member->plan.order) {
      member->states[name] = read_states(*member, name, /*elements=*/false, read);
    }
    std::string answer;
    {
      PieceCall call(*member);
      const std::vector<std::int64_t> none;
      for (const std::string& name : member->plan.order) {
        call.add(name, none, {}, member->plan.parameters.at(name), {});
      }
      const auto pointers = call.pointers();
      answer = plugin_text(
          member->component.function("keep"), member->where + ", keep", [&](capstan_sink* sink, capstan_error* error) {
            return member->table()->keep(member->self(), pointers.data(), pointers.size(), updates, sink, error);
          });
    }
    member->states.clear();
    try {
      const Json told = Json::parse(answer);
      for (const Json& one : told.at("tensors").as_array()) {
        KeptAxis& kept = all.emplace_back(read_kept(one));
        kept.by = member->where;
      }
    } catch (const std::exception& fault) {
      throw PluginError(member->where + ", keep: answered what cannot be read: " + fault.what() +
                        ". Ask the plugin's author.");
    }
  }
  return all;
}

}  // namespace capstan
