#include "sdk/conformance/compression_under_test.hpp"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <random>

#include "core/errors.hpp"
#include "core/registry/plugin_call.hpp"
#include "sdk/conformance/piece_functions.hpp"

namespace capstan::conformance {
namespace {

constexpr std::int64_t kBlock = Partition::kBlock, kGuard = 64;
constexpr float kGuardValue = 12345.0f;

/// A module of the kit's model.
struct Part {
  const char *path, *class_name;
  std::vector<std::int64_t> weight;
  std::int64_t bias = 0;
  bool trained = true;
};

const std::vector<Part>& parts() {
  static const std::vector<Part> all = {{"", "KitModel", {}},
                                        {"embed", "torch.nn.Embedding", {1024, 96}},
                                        {"blocks.0.norm", "torch.nn.LayerNorm", {96}, 96},
                                        {"blocks.0.fc", "torch.nn.Linear", {384, 320}, 384},
                                        {"blocks.0.proj", "torch.nn.Linear", {100, 96}, 100},
                                        {"conv", "torch.nn.Conv2d", {32, 16, 3, 3}, 32},
                                        {"frozen", "torch.nn.Linear", {64, 96}, 64, false},
                                        {"head", "torch.nn.Linear", {96, 1024}}};
  return all;
}

Json parameter(const char* name, const std::vector<std::int64_t>& shape, bool trained) {
  Json one = Json::object();
  one["name"] = name;
  one["shape"] = Json::array();
  for (const std::int64_t size : shape) one["shape"].push_back(size);
  one["trained"] = trained;
  return one;
}

capstan_tensor handle(const at::Tensor& tensor) {
  return reinterpret_cast<capstan_tensor>(const_cast<at::Tensor*>(&tensor));
}

/// Memory for what a component writes, with guards around it that it must leave alone.
class Guarded {
 public:
  Guarded(at::IntArrayRef sizes, at::ScalarType dtype, double fill = std::nan(""))
      : numel_(c10::multiply_integers(sizes)), room_(at::full({numel_ + 2 * kGuard}, kGuardValue, dtype)) {
    inside_ = room_.narrow(0, kGuard, numel_).view(sizes);
    inside_.fill_(at::isFloatingType(dtype) ? at::Scalar(fill) : at::Scalar(0));
  }
  Guarded(const Guarded&) = delete;

  const at::Tensor& tensor() const { return inside_; }
  void check(const std::string& what) const {
    const at::Tensor expected = at::full({kGuard}, kGuardValue, room_.scalar_type());
    expect(room_.narrow(0, 0, kGuard).equal(expected) && room_.narrow(0, kGuard + numel_, kGuard).equal(expected),
           what + " writes outside of the memory that it was given.");
    expect(inside_.data_ptr() == static_cast<char*>(room_.data_ptr()) + kGuard * room_.element_size(),
           what + " puts another tensor in the place of the one to fill.");
  }

 private:
  std::int64_t numel_;
  at::Tensor room_, inside_;
};

/// The inputs of a call, which must be what they were when it is over.
class ReadOnly {
 public:
  explicit ReadOnly(const at::Tensor& input) : input_(input), before_(input.clone()) {}
  void check(const std::string& what) const { expect(same_values(input_, before_), what + " changes its input."); }

 private:
  const at::Tensor& input_;
  at::Tensor before_;
};

}  // namespace

Json compressed_model() {
  Json model = Json::object();
  model["modules"] = Json::array();
  for (const Part& part : parts()) {
    Json one = Json::object();
    one["path"] = part.path;
    one["class"] = part.class_name;
    one["parameters"] = Json::array();
    if (!part.weight.empty()) one["parameters"].push_back(parameter("weight", part.weight, part.trained));
    if (part.bias > 0) one["parameters"].push_back(parameter("bias", {part.bias}, part.trained));
    model["modules"].push_back(std::move(one));
  }
  model["seed"] = std::int64_t{42};
  return model;
}

CompressionUnderTest::CompressionUnderTest(const Context& context, const ComponentManifest& manifest,
                                           const std::function<void(capstan_host&)>& change)
    : component_(context, manifest, default_params(manifest),
                 [&change](capstan_host& host) {
                   lend_piece_functions(host);
                   if (change) change(host);
                 }),
      table_(component_.vtable<capstan_compression>()) {
  const Json model = compressed_model();
  const std::string text = model.dump();
  capstan_sink sink;
  must_call("plan", "plan",
            [&](void* self, capstan_error* error) { return table_->plan(self, as_str(text), &sink, error); });
  Json json;
  try {
    json = Json::parse(sink.text);
  } catch (const std::exception& error) {
    throw Broken(std::string("its plan is not JSON: ") + error.what());
  }
  try {
    plan_ = read_plan(json, model, "'" + manifest.type + "'");
  } catch (const PluginError& error) {
    throw Broken(error.what());
  }
  check_functions();
  make_states();
}

/// Gives every parameter its states, trained ones random numbers, and has them prepared.
void CompressionUnderTest::make_states() {
  std::mt19937_64 random(7);
  std::map<std::string, at::Tensor> masters;
  for (const auto& [name, parameter] : plan_.parameters) {
    masters[name] = random_weights(random, parameter.layout.numel);
    for (const CompressionPlan::State& state : parameter.states) {
      at::Tensor values = at::zeros({state.numel}, state.dtype);
      if (state.trained) values = random_weights(random, state.numel, static_cast<float>(state.bound) / 2);
      states_[name].push_back(values);
    }
  }
  if (!states_.empty()) prepare(masters);
}

std::map<std::string, std::vector<at::Tensor>> CompressionUnderTest::prepare(
    const std::map<std::string, at::Tensor>& masters) {
  for (const auto& [name, parameter] : plan_.parameters) {
    for (std::size_t i = 0; i < parameter.states.size(); ++i) {
      if (!parameter.states[i].trained) states_[name][i].zero_();
    }
  }
  const std::vector<Planned> all = parameters();
  std::vector<Shown> shown(all.size());
  std::vector<capstan_compressed> pieces;
  std::vector<const capstan_compressed*> pointers;
  std::vector<at::Tensor> written;
  for (const Planned& planned : all) written.push_back(masters.at(planned.name).clone());
  for (std::size_t i = 0; i < all.size(); ++i) {
    pieces.push_back(piece_of(all[i], written[i], all[i].whole(), {}, shown[i]));
    pieces.back().master = handle(written[i]);
  }
  for (const capstan_compressed& piece : pieces) pointers.push_back(&piece);
  must_call("prepare", "prepare", [&](void* self, capstan_error* error) {
    return table_->prepare(self, pointers.data(), pointers.size(), 0, 1, error);
  });
  std::map<std::string, std::vector<at::Tensor>> made;
  for (const auto& [name, states] : states_) {
    for (const at::Tensor& state : states) made[name].push_back(state.clone());
  }
  return made;
}

std::vector<at::Tensor> CompressionUnderTest::gradient(const Planned& planned, const at::Tensor& whole,
                                                       const at::Tensor& gradient) const {
  const Guarded changed({planned.numel()}, at::kFloat);
  changed.tensor().copy_(gradient);
  std::deque<Guarded> of_states;
  std::vector<capstan_tensor> handles;
  for (const CompressionPlan::State& state : planned.plan.states) {
    if (state.trained) of_states.emplace_back(at::IntArrayRef({state.numel}), at::kFloat);
    handles.push_back(state.trained ? handle(of_states.back().tensor()) : nullptr);
  }
  const ReadOnly before(whole);
  Shown shown;
  capstan_compressed piece = piece_of(planned, whole, planned.whole(), {}, shown);
  piece.grad = handle(changed.tensor());
  piece.grad_scale = 1;
  if (!handles.empty()) piece.state_grads = handles.data();
  const capstan_compressed* pointer = &piece;
  must_call("gradient", "'" + planned.name + "'", [&](void* self, capstan_error* error) {
    return table_->gradient(self, &pointer, 1, first_active(), error);
  });
  before.check("gradient");
  changed.check("gradient");
  std::vector<at::Tensor> made = {changed.tensor().clone()};
  for (const Guarded& state : of_states) {
    state.check("gradient");
    made.push_back(state.tensor().clone());
  }
  return made;
}

std::string CompressionUnderTest::plan_of(const Context& context, const ComponentManifest& manifest,
                                          const Json& model) {
  const ComponentUnderTest component(context, manifest);
  const auto* table = component.vtable<capstan_compression>();
  const std::string text = model.dump();
  capstan_sink sink;
  const bool worked = may_refuse(
      "plan", [&](capstan_error* error) { return table->plan(component.self(), as_str(text), &sink, error); });
  return worked ? sink.text : "";
}

void CompressionUnderTest::check_functions() const {
  const auto require = [](bool needed, bool there, const std::string& what, const std::string& function) {
    expect(!needed || there, "its plan has " + what + ", and it has no function " + function + ".");
  };
  require(!plan_.parameters.empty(), CAPSTAN_HAS(table_, transform), "parameters", "transform");
  require(!plan_.operands.empty(), CAPSTAN_HAS(table_, operand), "operands", "operand");
  for (const auto& [name, parameter] : plan_.parameters) {
    require(!parameter.measures.empty(), CAPSTAN_HAS(table_, measure), "measures", "measure");
    require(parameter.bits > 0, CAPSTAN_HAS(table_, encode), "bits", "encode");
    require(!parameter.states.empty(), CAPSTAN_HAS(table_, prepare), "states", "prepare");
    require(parameter.gradient, CAPSTAN_HAS(table_, gradient), "gradients", "gradient");
  }
  expect(CAPSTAN_HAS(table_, save) == CAPSTAN_HAS(table_, load), "save and load belong together.");
}

void CompressionUnderTest::must_call(const std::string& function, const std::string& what,
                                     const std::function<capstan_status(void*, capstan_error*)>& call) const {
  must(function == what ? function : function + " of " + what,
       [&](capstan_error* error) { return call(component_.self(), error); });
}

std::vector<Planned> CompressionUnderTest::parameters() const {
  std::vector<Planned> planned;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto found = plan_.parameters.find(name);
    if (found != plan_.parameters.end()) planned.push_back({name, shape, found->second});
  };
  for (const Part& part : parts()) {
    add(std::string(part.path) + ".weight", part.weight);
    add(std::string(part.path) + ".bias", {part.bias});
  }
  if (planned.empty()) {
    throw Skip(
        "its plan names no parameter of the kit's model (modules embed, blocks.0.norm, blocks.0.fc, blocks.0.proj, "
        "conv, "
        "frozen, head). Let its parameters name some, with --params or in the defaults.");
  }
  return planned;
}

std::vector<Planned> CompressionUnderTest::parameters_with_gradients() const {
  std::vector<Planned> planned = parameters();
  std::erase_if(planned, [](const Planned& one) { return !one.plan.gradient; });
  if (planned.empty()) throw Skip("its plan changes no gradients.");
  return planned;
}

std::vector<Planned> CompressionUnderTest::parameters_with_codes() const {
  std::vector<Planned> planned = parameters();
  std::erase_if(planned, [&](Planned& one) {
    const int most = one.plan.bits;
    if (most > 0 && CAPSTAN_HAS(table_, code_bits)) {
      one.plan.bits = table_->code_bits(component_.self(), as_str(one.name), first_active());
      expect(one.plan.bits >= 0 && one.plan.bits <= most, "code_bits of '" + one.name + "' gives " +
                                                              std::to_string(one.plan.bits) + ", and its plan says " +
                                                              std::to_string(most) + " at most.");
    }
    return one.plan.bits == 0;
  });
  if (planned.empty()) throw Skip("its plan has no bits: it gives no codes.");
  return planned;
}

std::vector<std::string> CompressionUnderTest::operands() const {
  if (plan_.operands.empty()) throw Skip("its plan names no operands of the kit's model.");
  return plan_.operands;
}

bool CompressionUnderTest::has_active() const { return CAPSTAN_HAS(table_, active); }

bool CompressionUnderTest::active(std::int64_t updates) const {
  return !has_active() || table_->active(component_.self(), updates) != 0;
}

std::int64_t CompressionUnderTest::first_active() const {
  if (active(0)) return 0;
  for (int power = 0; power <= 40; ++power) {
    if (active(std::int64_t{1} << power)) return std::int64_t{1} << power;
  }
  throw Skip("acts after none of the numbers of updates that were tried, up to 2^40.");
}

capstan_compressed CompressionUnderTest::piece_of(const Planned& planned, const at::Tensor& input, const Range& range,
                                                  const std::vector<double>& statistics, Shown& shown) const {
  const GroupLayout& layout = planned.plan.layout;
  const bool borrowed = !planned.plan.states_of.empty();
  const std::string& owner = borrowed ? planned.plan.states_of : planned.name;
  if (const auto found = states_.find(owner); found != states_.end()) {
    const std::vector<CompressionPlan::State>& states = plan_.parameters.at(owner).states;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const bool of_elements = states[i].of_elements;
      at::Tensor values = of_elements && borrowed ? at::Tensor() : found->second[i];
      if (of_elements && !borrowed) values = values.narrow(0, range.offset, range.numel);
      shown.tensors.push_back(values);
    }
    for (const at::Tensor& values : shown.tensors) shown.handles.push_back(values.defined() ? handle(values) : nullptr);
  }
  capstan_compressed piece{};
  piece.struct_size = sizeof piece;
  piece.name = as_str(planned.name);
  piece.full_shape = planned.shape.data();
  piece.full_dims = static_cast<std::uint32_t>(planned.shape.size());
  piece.offset = static_cast<std::uint64_t>(range.offset);
  piece.numel = static_cast<std::uint64_t>(range.numel);
  piece.full_numel = static_cast<std::uint64_t>(layout.numel);
  piece.groups = static_cast<std::uint64_t>(layout.groups);
  piece.input = handle(input);
  piece.states = shown.handles.data();
  piece.state_count = shown.handles.size();
  if (!statistics.empty()) {
    piece.statistics = statistics.data() + static_cast<std::size_t>(layout.first_group(range)) * planned.plan.numbers();
  }
  return piece;
}

std::vector<double> CompressionUnderTest::measure(const Planned& planned, const at::Tensor& whole, const Range& range,
                                                  std::size_t round, const std::vector<double>& statistics) const {
  const auto width = static_cast<std::int64_t>(planned.plan.measures[round].size());
  const Guarded partials({planned.plan.layout.segments_in(range) * width}, at::kDouble);
  const at::Tensor input = whole.narrow(0, range.offset, range.numel);
  const ReadOnly before(input);
  Shown shown;
  const capstan_compressed piece = piece_of(planned, input, range, statistics, shown);
  must_call("measure", "'" + planned.name + "'", [&](void* self, capstan_error* error) {
    return table_->measure(self, &piece, static_cast<std::uint32_t>(round),
                           partials.tensor().mutable_data_ptr<double>(), error);
  });
  before.check("measure");
  partials.check("measure");
  expect(!partials.tensor().isnan().any().item<bool>(),
         "measure of '" + planned.name + "' leaves some numbers as they were, or makes NaN of finite values.");
  const auto* first = partials.tensor().const_data_ptr<double>();
  return {first, first + partials.tensor().numel()};
}

std::vector<double> CompressionUnderTest::statistics(const Planned& planned, const at::Tensor& whole,
                                                     const std::vector<Range>& pieces) const {
  const CompressionPlan::Parameter& plan = planned.plan;
  std::vector<double> all(static_cast<std::size_t>(plan.layout.groups) * plan.numbers());
  std::size_t first = 0;  // of the round's numbers among those of a group
  for (std::size_t round = 0; round < plan.measures.size(); ++round) {
    const std::vector<Join>& joins = plan.measures[round];
    std::vector<double> segments;
    for (const Range& piece : pieces) {
      const std::vector<double> more = measure(planned, whole, piece, round, all);
      segments.insert(segments.end(), more.begin(), more.end());
    }
    const std::vector<double> totals = join_segments(plan.layout, planned.whole(), joins, segments);
    for (std::size_t group = 0; group * joins.size() < totals.size(); ++group) {
      std::copy_n(totals.data() + group * joins.size(), joins.size(), all.data() + group * plan.numbers() + first);
    }
    first += joins.size();
  }
  return all;
}

at::Tensor CompressionUnderTest::transform(const Planned& planned, const at::Tensor& whole, const Range& range,
                                           const std::vector<double>& statistics, bool in_place) const {
  const std::int64_t updates = first_active();
  const at::Tensor input = whole.narrow(0, range.offset, range.numel);
  const Guarded out({range.numel}, at::kFloat);
  if (in_place) out.tensor().copy_(input);
  const ReadOnly before(input);
  Shown shown;
  const capstan_compressed piece = piece_of(planned, in_place ? out.tensor() : input, range, statistics, shown);
  must_call("transform", "'" + planned.name + "'", [&](void* self, capstan_error* error) {
    return table_->transform(self, &piece, updates, handle(out.tensor()), error);
  });
  before.check("transform");
  out.check("transform");
  return out.tensor();
}

at::Tensor CompressionUnderTest::transform(const Planned& planned, const at::Tensor& whole) const {
  return transform(planned, whole, planned.whole(), statistics(planned, whole, {planned.whole()}));
}

PieceCodes CompressionUnderTest::encode(const Planned& planned, const at::Tensor& whole, const Range& range,
                                        const std::vector<double>& statistics) const {
  const at::Tensor input = whole.narrow(0, range.offset, range.numel);
  const std::int64_t groups = planned.plan.layout.groups_in(range);
  // Whatever is left as it was shows.
  const at::Tensor codes = at::full({range.numel}, 111, at::kChar), zero_points = at::full({groups}, 77, at::kInt);
  const Guarded scales({groups}, at::kFloat);
  const ReadOnly before(input);
  Shown shown;
  const capstan_compressed piece = piece_of(planned, input, range, statistics, shown);
  must_call("encode", "'" + planned.name + "'", [&](void* self, capstan_error* error) {
    return table_->encode(self, &piece, first_active(), handle(codes), handle(scales.tensor()), handle(zero_points),
                          error);
  });
  before.check("encode");
  scales.check("encode");
  return {codes, scales.tensor().clone(), zero_points};
}

at::Tensor CompressionUnderTest::operand(const std::string& module, const at::Tensor& input, bool training) const {
  const Guarded out(input.sizes(), input.scalar_type());
  const ReadOnly before(input);
  const std::vector<std::int64_t> shape = input.sizes().vec();
  must_call("operand", "'" + module + "'", [&](void* self, capstan_error* error) {
    return table_->operand(self, as_str(module), handle(input), first_active(), training ? 1 : 0, handle(out.tensor()),
                           error);
  });
  before.check("operand");
  out.check("operand");
  expect(out.tensor().sizes() == at::IntArrayRef(shape) && out.tensor().scalar_type() == input.scalar_type(),
         "operand changes the shape or the dtype.");
  return out.tensor().clone();
}

void CompressionUnderTest::settle(std::int64_t updates) const {
  if (!CAPSTAN_HAS(table_, settle)) return;
  must_call("settle", "settle", [&](void* self, capstan_error* error) { return table_->settle(self, updates, error); });
}

bool CompressionUnderTest::has_state() const { return CAPSTAN_HAS(table_, save); }

std::string CompressionUnderTest::save() const {
  capstan_sink sink;
  must_call("save", "save", [&](void* self, capstan_error* error) { return table_->save(self, &sink, error); });
  try {
    Json::parse(sink.text);
  } catch (const std::exception& error) {
    throw Broken(std::string("save writes what is not JSON: ") + error.what());
  }
  return sink.text;
}

void CompressionUnderTest::load(const std::string& state) const {
  must_call("load", "load", [&](void* self, capstan_error* error) { return table_->load(self, as_str(state), error); });
}

at::Tensor random_weights(std::mt19937_64& random, std::int64_t count, float deviation) {
  at::Tensor values = at::empty({count}, at::kFloat);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::generate_n(values.mutable_data_ptr<float>(), count, [&] { return normal(random); });
  return values;
}

std::vector<Range> pieces_of(const Planned& planned, std::mt19937_64& random) {
  std::vector<Range> pieces;
  for (std::int64_t at = 0; at < planned.numel();) {
    const auto blocks = static_cast<std::int64_t>(random() % 2 + 1);
    pieces.push_back({at, std::min(blocks * kBlock, planned.numel() - at)});
    at += pieces.back().numel;
  }
  return pieces;
}

at::Tensor operand_input(const std::string& module, std::mt19937_64& random, at::ScalarType dtype, float deviation) {
  const auto part = std::find_if(parts().begin(), parts().end(), [&](const Part& one) { return one.path == module; });
  expect(part != parts().end() && part->weight.size() >= 2,
         "its plan names the operand '" + module + "', whose weight no linear layer and no convolution uses.");
  const std::int64_t channels = part->weight[1];
  const std::vector<std::int64_t> shape = part->weight.size() == 4 ? std::vector<std::int64_t>{2, channels, 6, 5}
                                                                   : std::vector<std::int64_t>{3, 7, channels};
  return random_weights(random, c10::multiply_integers(shape), deviation).view(shape).to(dtype);
}

bool same_values(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() &&
         (!at::isFloatingType(one.scalar_type()) ? one.equal(other) : at::allclose(one, other, 0, 0, true));
}

}  // namespace capstan::conformance
