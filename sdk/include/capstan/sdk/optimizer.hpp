#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/collectives.hpp"
#include "capstan/sdk/component.hpp"
#include "capstan/sdk/tensor.hpp"

/// An optimizer is an ordinary class:
///
///   class Lion {
///    public:
///     Lion(const sdk::Host&, const sdk::Params&);
///     void update(const sdk::Slots& slots, const sdk::Step& step);
///
///     // optional; with `measures = k` in the manifest: k partial sums a slot, whose totals step.total() then has
///     static constexpr std::size_t kMeasures = k;
///     void measure(const sdk::Slots& slots, const sdk::Step& step, std::span<double> partials);
///     // optional; with `measures_model = k` in the manifest: the same, added over the whole model; step.model_total()
///     static constexpr std::size_t kMeasuresModel = k;
///     void measure_model(const sdk::Slots& slots, const sdk::Step& step, std::span<double> partials);
///     void save(const sdk::Sink& sink);
///     void load(const sdk::Document& saved);
///
///     // optional, with the trait own_communication: whether update `update_index` gets gradients averaged over the
///     // ranks or this rank's own, and making all ranks' parameters equal before the engine evaluates and saves
///     sdk::GradientMode gradient_mode(std::int64_t update_index);
///     void synchronize(const sdk::Slots& slots, const sdk::Step& step);  // or with the slots alone
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Lion, "Lion">)
namespace capstan::sdk {

/// What a parameter is to its model; see capstan_param_role.
enum class Role {
  kOther = CAPSTAN_PARAM_OTHER,
  kMatrix = CAPSTAN_PARAM_MATRIX,
  kEmbedding = CAPSTAN_PARAM_EMBEDDING,
  kHead = CAPSTAN_PARAM_HEAD,
  kNorm = CAPSTAN_PARAM_NORM,
  kBias = CAPSTAN_PARAM_BIAS
};

/// One parameter, or this rank's part of it: elements [offset(), offset() + numel()) of the flattened parameter.
/// The accessors check what the component's author would otherwise forget, and name the parameter when they throw.
class Slot {
 public:
  Slot(const capstan_slot* raw, std::string_view optimizer) : raw_(raw), optimizer_(optimizer) {}

  std::string_view name() const { return to_view(raw_->name); }
  std::uint32_t group() const { return raw_->group; }
  std::size_t numel() const { return static_cast<std::size_t>(raw_->numel); }
  std::uint64_t offset() const { return raw_->offset; }
  std::uint64_t full_numel() const { return raw_->full_numel; }
  std::span<const std::int64_t> full_shape() const { return {raw_->full_shape, raw_->full_dims}; }

  /// What the parameter is to its model: a matrix in a hidden layer is kMatrix, whatever its name.
  Role role() const { return static_cast<Role>(raw_->role); }

  /// Master values.
  float* param() const {
    if (!on_cpu(raw_->param)) {
      fail(std::string(optimizer_) + " updates parameters in host memory; this one is on another device.");
    }
    const Values values = values_of(raw_->param);
    if (values.dtype != Dtype::kFloat32) {
      fail(std::string(optimizer_) + " updates float32 parameters; this one is " + dtype_name(raw_->param) + ".");
    }
    return static_cast<float*>(values.data);
  }

  /// float32, bfloat16 or float16, on the host: numel() elements. In an update of GradientMode::kLocal it is this
  /// rank's gradient of the whole parameter, full_numel() elements.
  Values grad() const { return floats(raw_->grad, "gradients", "this one"); }

  /// With the trait sparse_rows: whether the gradient came sparse, from an embedding for instance.
  bool has_sparse_grad() const { return raw_->grad_rows != nullptr; }
  /// The rows along the first dimension that a sparse gradient has, ascending; grad() is 0 in all others.
  std::span<const std::int64_t> grad_rows() const { return {raw_->grad_rows, raw_->grad_row_count}; }

  /// How many states the manifest declares for a slot, those included that this one does not have.
  std::size_t state_count() const { return raw_->state_count; }
  /// State `index` of the manifest: float32, bfloat16 or float16, one value an element, or a block.
  Values state(std::size_t index) const { return floats(state_tensor(index), "states", "state", index); }
  /// False for a state that `when`, `when_dims` and the like leave out for this parameter.
  bool has_state(std::size_t index) const { return declared(index) != nullptr; }
  /// State `index` itself. Throws when the manifest declares fewer, or leaves it out for this parameter.
  capstan_tensor state_tensor(std::size_t index) const {
    const capstan_tensor tensor = declared(index);
    if (tensor == nullptr) {
      fail("has no state " + std::to_string(index) + ": the manifest of " + std::string(optimizer_) +
           " leaves it out here. Ask has_state(" + std::to_string(index) + ") first.");
    }
    return tensor;
  }
  /// A state declared `dtype = "uint8"`, or `"int8"`: one number an element, or a block.
  std::uint8_t* bytes(std::size_t index) const {
    return static_cast<std::uint8_t*>(integers(index, Dtype::kUInt8, "uint8"));
  }
  std::int8_t* signed_bytes(std::size_t index) const {
    return static_cast<std::int8_t*>(integers(index, Dtype::kInt8, "int8"));
  }
  /// How many values a state declared `like = "block"`, `block = size` has here; the last may be of fewer elements.
  std::size_t blocks(std::size_t size) const { return (numel() + size - 1) / size; }
  /// State `index` as float32.
  float* floats(std::size_t index) const {
    const Values values = state(index);
    if (values.dtype != Dtype::kFloat32) {
      fail(std::string(optimizer_) + " keeps state " + std::to_string(index) + " in float32; this one is " +
           dtype_name(state_tensor(index)) + ".");
    }
    return static_cast<float*>(values.data);
  }
  /// A state declared `like = "scalar"`, `dtype = "int64"`.
  std::int64_t& counter(std::size_t index) const {
    return *static_cast<std::int64_t*>(scalar(index, Dtype::kInt64, "an int64"));
  }
  /// A state declared `like = "scalar"`, `dtype = "float32"`.
  float& number(std::size_t index) const { return *static_cast<float*>(scalar(index, Dtype::kFloat32, "a float32")); }

  /// Where the new values, rounded to nearest even, may go as well; no data when there is no such copy. Call
  /// mark_compute_written() when done.
  Values compute() const {
    if (raw_->compute == nullptr) return {};
    const Values values = values_of(raw_->compute);
    return values.is_float() ? values : Values{};
  }
  void mark_compute_written() const { *raw_->compute_written = 1; }

  /// Throws "parameter '<name>': <text>".
  [[noreturn]] void fail(const std::string& text) const {
    throw Error("parameter '" + std::string(name()) + "': " + text);
  }

  const capstan_slot* raw() const { return raw_; }

 private:
  Values floats(capstan_tensor tensor, const char* what, const char* which, std::size_t index = 0) const {
    const Values values = values_of(tensor);
    if (!values.is_float() || !on_cpu(tensor)) fail_floats(tensor, what, which, index);
    return values;
  }
  [[noreturn]] void fail_floats(capstan_tensor tensor, const char* what, const char* which, std::size_t index) const {
    const std::string subject = std::string(which) == "state" ? "state " + std::to_string(index) : which;
    const std::string takes =
        std::string(optimizer_) + " takes float32, bfloat16 or float16 " + what + " in host memory; ";
    fail(takes + subject + " is " + (on_cpu(tensor) ? dtype_name(tensor) : std::string("on another device")) + ".");
  }
  capstan_tensor declared(std::size_t index) const {
    if (index >= state_count()) {
      fail("has no state " + std::to_string(index) + ": the manifest of " + std::string(optimizer_) + " declares " +
           std::to_string(state_count()) + " for a slot, numbered from 0.");
    }
    return raw_->state[index];
  }
  void* scalar(std::size_t index, Dtype dtype, const char* expected) const {
    return of_type(index, dtype, "as", expected);
  }
  void* integers(std::size_t index, Dtype dtype, const char* expected) const {
    return of_type(index, dtype, "in", expected);
  }
  void* of_type(std::size_t index, Dtype dtype, const char* how, const char* expected) const {
    const capstan_tensor tensor = state_tensor(index);
    const Values values = values_of(tensor);
    if (values.dtype != dtype || !on_cpu(tensor)) {
      fail(std::string(optimizer_) + " keeps state " + std::to_string(index) + " " + how + " " + expected +
           " in host memory; this one is " + (on_cpu(tensor) ? dtype_name(tensor) : std::string("on another device")) +
           ".");
    }
    return values.data;
  }

  const capstan_slot* raw_;
  std::string_view optimizer_;
};

/// The slots of a call.
class Slots {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Slot;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = Slot;

    Iterator(const capstan_slot* const* at, std::string_view optimizer) : at_(at), optimizer_(optimizer) {}
    Slot operator*() const { return {*at_, optimizer_}; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    const capstan_slot* const* at_;
    std::string_view optimizer_;
  };

  Slots(const capstan_slot* const* slots, std::size_t count, std::string_view optimizer)
      : slots_(slots), count_(count), optimizer_(optimizer) {}

  std::size_t size() const { return count_; }
  Slot operator[](std::size_t index) const { return {slots_[index], optimizer_}; }
  Iterator begin() const { return {slots_, optimizer_}; }
  Iterator end() const { return {slots_ + count_, optimizer_}; }

 private:
  const capstan_slot* const* slots_;
  std::size_t count_;
  std::string_view optimizer_;
};

/// The numbers of one parameter group: "lr" and every numeric or boolean parameter of the optimizer's schema.
class Group {
 public:
  Group(const capstan_host* host, const capstan_group* group, capstan_error* error)
      : host_(host), group_(group), error_(error) {}

  double number(std::string_view name) const {
    double value = 0;
    read(name, &value, 1);
    return value;
  }
  /// For a parameter without a default in the schema.
  double number_or(std::string_view name, double fallback) const {
    double value = 0;
    return host_->group_numbers(group_, to_str(name), &value, 1, error_) == CAPSTAN_OK ? value : fallback;
  }
  bool boolean(std::string_view name) const { return number(name) != 0; }
  /// For a list whose default in the schema is [].
  bool is_empty(std::string_view name) const {
    return host_->group_numbers(group_, to_str(name), nullptr, 0, error_) == CAPSTAN_OK;
  }
  /// A list that may have any of these lengths; empty when it has none of them.
  std::vector<double> numbers(std::string_view name, std::initializer_list<std::size_t> lengths) const {
    for (const std::size_t length : lengths) {
      std::vector<double> values(length);
      if (host_->group_numbers(group_, to_str(name), values.data(), length, error_) == CAPSTAN_OK) return values;
    }
    return {};
  }
  /// Fills `out`: exactly that many values must be there.
  void read(std::string_view name, double* out, std::size_t count) const {
    check(host_->group_numbers(group_, to_str(name), out, count, error_));
  }

 private:
  const capstan_host* host_;
  const capstan_group* group_;
  capstan_error* error_;
};

/// What holds for a whole update.
class Step {
 public:
  Step(const capstan_host* host, const capstan_step* raw, std::span<const double> totals, std::size_t measures,
       capstan_error* error)
      : host_(host), raw_(raw), totals_(totals), measures_(measures), error_(error) {}

  /// The number of updates before this one in the run; skipped steps do not count.
  std::int64_t update_index() const { return raw_->update_index; }
  /// Multiply every gradient by it.
  double grad_scale() const { return raw_->grad_scale; }
  std::size_t group_count() const { return raw_->group_count; }
  Group group(std::size_t index) const { return {host_, raw_->groups[index], error_}; }
  /// read(group) for every group, in order: read each group's numbers once, not once a slot.
  template <class Read>
  auto each_group(Read&& read) const {
    std::vector<decltype(read(group(0)))> numbers;
    numbers.reserve(group_count());
    for (std::size_t i = 0; i < group_count(); ++i) numbers.push_back(read(group(i)));
    return numbers;
  }
  /// Measure `index` of slot `slot`, added over all shards of the parameter. Only in update().
  double total(std::size_t slot, std::size_t index) const { return totals_[slot * measures_ + index]; }
  /// Measure `index` of the model, added over all parameters and ranks: the same on every rank and at every ZeRO stage.
  /// Only in update().
  double model_total(std::size_t index) const {
    if (raw_->model_totals == nullptr) {
      throw Error("model_total() has numbers in update() alone, and with `measures_model` in the manifest.");
    }
    return raw_->model_totals[index];
  }
  /// State `index` among those declared with `extent = "model"`, in float32.
  float* model_state(std::size_t index) const {
    if (index >= raw_->model_state_count) {
      throw Error("state " + std::to_string(index) + " of the model: the manifest declares " +
                  std::to_string(raw_->model_state_count) + ", numbered from 0.");
    }
    const Values values = values_of(raw_->model_state[index]);
    if (values.dtype != Dtype::kFloat32 || !on_cpu(raw_->model_state[index])) {
      throw Error("state " + std::to_string(index) + " of the model: must be float32 in host memory.");
    }
    return static_cast<float*>(values.data);
  }
  /// For optimizers with the trait own_communication.
  Collectives collectives() const { return {host_, error_}; }
  const capstan_step* raw() const { return raw_; }

 private:
  const capstan_host* host_;
  const capstan_step* raw_;
  std::span<const double> totals_;
  std::size_t measures_;
  capstan_error* error_;
};

enum class GradientMode { kMean = 0, kLocal = 1 };

namespace detail {

/// `static constexpr std::size_t kMeasures = k;` in the class says what the manifest's `measures` says.
template <class T>
constexpr std::size_t measures() {
  if constexpr (requires { T::kMeasures; }) return T::kMeasures;
  return 0;
}

/// The same for `measures_model`.
template <class T>
constexpr std::size_t measures_model() {
  if constexpr (requires { T::kMeasuresModel; }) return T::kMeasuresModel;
  return 0;
}

template <class T, Literal Type>
struct OptimizerCalls {
  static Slots slots_of(const capstan_slot* const* slots, std::size_t count) {
    return {slots, count, to_view(literal_str<Type>())};
  }

  static capstan_status update(void* self, const capstan_slot* const* slots, std::size_t count,
                               const capstan_step* step, const double* totals, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] {
      const std::span<const double> sums(totals, totals == nullptr ? 0 : count * measures<T>());
      instance->object.update(slots_of(slots, count), Step(instance->host, step, sums, measures<T>(), error));
    });
  }
  static capstan_status measure(void* self, const capstan_slot* const* slots, std::size_t count,
                                const capstan_step* step, double* partials, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] {
      instance->object.measure(slots_of(slots, count), Step(instance->host, step, {}, measures<T>(), error),
                               std::span<double>(partials, count * measures<T>()));
    });
  }
  static capstan_status measure_model(void* self, const capstan_slot* const* slots, std::size_t count,
                                      const capstan_step* step, double* partials, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] {
      instance->object.measure_model(slots_of(slots, count), Step(instance->host, step, {}, measures<T>(), error),
                                     std::span<double>(partials, count * measures_model<T>()));
    });
  }
  static capstan_status gradient_mode(void* self, std::int64_t update_index, int* mode, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error,
                   [&] { *mode = static_cast<int>(instance->object.gradient_mode(update_index)); });
  }
  static capstan_status synchronize(void* self, const capstan_slot* const* slots, std::size_t count,
                                    capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] { instance->object.synchronize(slots_of(slots, count)); });
  }
  static capstan_status synchronize_step(void* self, const capstan_slot* const* slots, std::size_t count,
                                         const capstan_step* step, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] {
      instance->object.synchronize(slots_of(slots, count), Step(instance->host, step, {}, measures<T>(), error));
    });
  }
};

template <class T, Literal Type>
constexpr capstan_optimizer optimizer_vtable() {
  using Calls = OptimizerCalls<T, Type>;
  capstan_optimizer table{sizeof(capstan_optimizer), &Calls::update};
  if constexpr (requires { &T::measure; }) {
    static_assert(measures<T>() > 0, "a class with measure() needs `static constexpr std::size_t kMeasures`");
    table.measure = &Calls::measure;
  }
  if constexpr (requires { &T::measure_model; }) {
    static_assert(measures_model<T>() > 0,
                  "a class with measure_model() needs `static constexpr std::size_t kMeasuresModel`");
    table.measure_model = &Calls::measure_model;
  }
  if constexpr (requires { &T::gradient_mode; }) table.gradient_mode = &Calls::gradient_mode;
  if constexpr (requires(T & t, const Slots& slots) { t.synchronize(slots); }) table.synchronize = &Calls::synchronize;
  if constexpr (requires(T & t, const Slots& slots, const Step& step) { t.synchronize(slots, step); }) {
    table.synchronize_step = &Calls::synchronize_step;
  }
  if constexpr (requires { &T::save; }) table.save = &SavedCalls<T>::save;
  if constexpr (requires { &T::load; }) table.load = &SavedCalls<T>::load;
  return table;
}

template <class T, Literal Type>
inline constexpr capstan_optimizer kOptimizer = optimizer_vtable<T, Type>();

}  // namespace detail

/// The descriptor of optimizer class `T`, for CAPSTAN_PLUGIN.
template <class T, Literal Type>
inline constexpr capstan_component optimizer = describe<T, "optimizer", Type>(&detail::kOptimizer<T, Type>);

}  // namespace capstan::sdk
