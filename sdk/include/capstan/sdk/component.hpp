#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capstan/plugin.h"

/// The C++ layer of the plugin SDK: ordinary classes on top of capstan/plugin.h, compiled into the plugin. Nothing in
/// here crosses the boundary itself.
namespace capstan::sdk {

inline capstan_str to_str(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view to_view(capstan_str text) { return {text.data, text.size}; }

/// Throw it, or anything derived from std::exception, out of any function of a component: the host shows the text
/// behind the component's name and the place of the call.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown when a function of the host failed: the host's text already stands in the caller's capstan_error.
struct HostFailure {};

inline void check(capstan_status status) {
  if (status != CAPSTAN_OK) throw HostFailure{};
}

/// The sentence of an exception: LibTorch's texts go on with a C++ backtrace.
inline std::string_view sentence(const std::exception& thrown) {
  const std::string_view text = thrown.what();
  return text.substr(0, std::min(text.find("\nException raised from "), text.find("\nframe #0: ")));
}

/// Where a function of the host that is called now, on this thread, leaves the text of its failure.
inline thread_local capstan_error* current_error = nullptr;

/// Runs `body` and turns what it throws into the host's error text.
template <class Body>
capstan_status guarded(const capstan_host* host, capstan_error* error, Body&& body) noexcept {
  struct Scope {
    explicit Scope(capstan_error* now) : before(std::exchange(current_error, now)) {}
    ~Scope() { current_error = before; }
    capstan_error* before;
  } const scope(error);
  try {
    body();
    return CAPSTAN_OK;
  } catch (const HostFailure&) {
  } catch (const std::exception& thrown) {
    host->set_error(error, to_str(sentence(thrown)));
  } catch (...) {
    host->set_error(error, to_str("threw something that is not a std::exception"));
  }
  return CAPSTAN_FAILED;
}

/// What the engine lends. Cheap to copy; valid for the component's life. [any thread]
class Host {
 public:
  explicit Host(const capstan_host* host) : host_(host) {}

  void debug(std::string_view message) const { host_->log(host_->ctx, CAPSTAN_LOG_DEBUG, to_str(message)); }
  void info(std::string_view message) const { host_->log(host_->ctx, CAPSTAN_LOG_INFO, to_str(message)); }
  void warning(std::string_view message) const { host_->log(host_->ctx, CAPSTAN_LOG_WARNING, to_str(message)); }

  std::uint32_t rank() const { return host_->rank; }              // the index in the data-parallel group
  std::uint32_t world_size() const { return host_->world_size; }  // the size of the data-parallel group
  /// The stream that the engine works on, a cudaStream_t on CUDA: launch there and do not wait. Null on the CPU.
  /// [engine]
  void* stream() const { return host_->stream(host_->ctx); }

  // A component calls these functions from within a function that the engine calls. [engine] Each throws the host's
  // text.
  /// A number of the step under way, which monitors get under its whole tag: "Train/Samples/kept_tokens".
  void record(std::string_view tag, double value) const {
    check(host_->record(host_->ctx, to_str(tag), value, current_error));
  }
  /// The names of the model's layers in the order of forward; none where they are not known.
  std::vector<std::string> layer_names() const {
    std::vector<std::string> names;
    check(host_->layer_names(
        host_->ctx, &names,
        [](void* out, capstan_str name) { static_cast<std::vector<std::string>*>(out)->emplace_back(to_view(name)); },
        current_error));
    return names;
  }
  /// The difficulty of a metric whose schedule is custom, in step `step`, 1 for the first.
  std::int64_t difficulty(std::string_view metric, std::int64_t step) const {
    std::int64_t value = 0;
    check(host_->difficulty(host_->ctx, to_str(metric), step, &value, current_error));
    return value;
  }

  /// A number for the other components of the engine, by a name that they know.
  void tell(std::string_view name, double value) const {
    check(host_->tell(host_->ctx, to_str(name), value, current_error));
  }
  /// What a component has told last under that name; none where nobody has.
  std::optional<double> told(std::string_view name) const {
    double value = 0;
    int found = 0;
    check(host_->told(host_->ctx, to_str(name), &value, &found, current_error));
    return found != 0 ? std::optional(value) : std::nullopt;
  }
  /// In the event INITIALIZED: hessian_vector() will be called in events UPDATE_BEGIN.
  void want_curvature() const { check(host_->want_curvature(host_->ctx, current_error)); }
  /// The Hessian of the last micro-batch's loss, the mean over ranks, by these parameters, times a vector: float32, a
  /// tensor of each parameter's shape. The results are new handles that the caller owns. Every rank calls it alike.
  std::vector<capstan_tensor> hessian_vector(const std::vector<std::string>& parameters,
                                             const std::vector<capstan_tensor>& vector) const {
    std::vector<capstan_str> names;
    for (const std::string& name : parameters) names.push_back(to_str(name));
    std::vector<capstan_tensor> products(names.size());
    check(host_->hessian_vector(host_->ctx, names.data(), vector.data(), products.data(), names.size(), current_error));
    return products;
  }
  const capstan_host* raw() const { return host_; }

 private:
  const capstan_host* host_;
};

/// Takes the text that save() and describe() write.
class Sink {
 public:
  Sink(const capstan_host* host, capstan_sink* sink) : host_(host), sink_(sink) {}
  void write(std::string_view text) const { host_->sink_write(sink_, to_str(text)); }

 private:
  const capstan_host* host_;
  capstan_sink* sink_;
};

/// Reads a JSON document that the host gave: a component's parameters, its saved state, the facts of a run. Valid for
/// the duration of the call that it was handed to. Parameters arrive validated and complete, so the getters take no
/// default.
class Document {
 public:
  Document(const capstan_host* host, capstan_str json, capstan_error* error)
      : host_(host), json_(json), error_(error) {}

  /// A value at `key`, or deeper by JSON pointer ("/betas/0"). Throw the host's text when it is missing or of another
  /// type. `integer` takes whole floats.
  double number(std::string_view key) const {
    double value = 0;
    check(host_->json_number(json_, to_str(pointer(key)), &value, error_));
    return value;
  }
  std::int64_t integer(std::string_view key) const { return static_cast<std::int64_t>(number(key)); }
  bool boolean(std::string_view key) const { return number(key) != 0; }
  std::string text(std::string_view key) const {
    std::string value;
    check(host_->json_text(
        json_, to_str(pointer(key)), &value,
        [](void* out, capstan_str text) { *static_cast<std::string*>(out) = std::string(to_view(text)); }, error_));
    return value;
  }
  std::vector<double> numbers(std::string_view key) const {
    std::vector<double> values(size(key));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(pointer(key) + "/" + std::to_string(i));
    return values;
  }
  /// One number for all parameter groups, or a list with one a group: the list, of one element for a scalar.
  std::vector<double> scalar_or_list(std::string_view key) const {
    return is_list(key) ? numbers(key) : std::vector<double>{number(key)};
  }
  bool has(std::string_view key) const { return size(key) > 0; }  // present and not null (nor an empty list)
  std::size_t size(std::string_view key) const {
    std::size_t value = 0;
    check(host_->json_size(json_, to_str(pointer(key)), &value, error_));
    return value;
  }
  /// The names of an object's members, in their order; of anything else none.
  std::vector<std::string> names(std::string_view key) const {
    std::vector<std::string> found;
    check(host_->json_names(
        json_, to_str(pointer(key)), &found,
        [](void* out, capstan_str name) { static_cast<std::vector<std::string>*>(out)->emplace_back(to_view(name)); },
        error_));
    return found;
  }
  /// The texts of a list, or the one text that stands in its place.
  std::vector<std::string> texts(std::string_view key) const {
    if (!is_list(key)) return has(key) ? std::vector<std::string>{text(key)} : std::vector<std::string>{};
    std::vector<std::string> found(size(key));
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = text(pointer(key) + "/" + std::to_string(i));
    return found;
  }
  /// A member's name as a part of a JSON pointer (RFC 6901, section 3): "a/b" is "a~1b".
  static std::string escaped(std::string_view name) {
    std::string out;
    for (const char c : name) out += c == '~' ? std::string("~0") : c == '/' ? std::string("~1") : std::string(1, c);
    return out;
  }
  bool is_list(std::string_view key) const { return has(key) && text(key).starts_with('['); }

  /// Throws "key: message" unless `condition`: for what a schema cannot say.
  void require(bool condition, std::string_view key, std::string_view message) const {
    if (!condition) throw Error(std::string(key) + ": " + std::string(message));
  }

  std::string_view json() const { return to_view(json_); }

 private:
  static std::string pointer(std::string_view key) {
    return key.starts_with('/') || key.empty() ? std::string(key) : "/" + std::string(key);
  }

  const capstan_host* host_;
  capstan_str json_;
  capstan_error* error_;
};

/// A component's parameters: what its constructor gets.
using Params = Document;

/// What `self` points to on the C side.
template <class T>
struct Instance {
  const capstan_host* host;
  T object;
};

template <class T>
capstan_status create(const capstan_host* host, capstan_str params, void** self, capstan_error* error) {
  return guarded(host, error, [&] { *self = new Instance<T>{host, T(Host(host), Params(host, params, error))}; });
}

template <class T>
void destroy(void* self) {
  delete static_cast<Instance<T>*>(self);
}

/// save() and load(), the same for every kind that has them.
template <class T>
struct SavedCalls {
  static capstan_status save(void* self, capstan_sink* sink, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] { instance->object.save(Sink(instance->host, sink)); });
  }
  static capstan_status load(void* self, capstan_str json, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] { instance->object.load(Document(instance->host, json, error)); });
  }
};

/// A string literal as a template argument.
template <std::size_t N>
struct Literal {
  constexpr Literal(const char (&text)[N]) { std::copy_n(text, N, chars); }
  char chars[N]{};
};

template <Literal Text>
inline constexpr Literal kLiteral = Text;

template <Literal Text>
constexpr capstan_str literal_str() {
  return {kLiteral<Text>.chars, sizeof(kLiteral<Text>.chars) - 1};
}

/// The descriptor of component class `T` under a kind and type.
template <class T, Literal Kind, Literal Type>
constexpr capstan_component describe(const void* vtable) {
  return {sizeof(capstan_component), literal_str<Kind>(), literal_str<Type>(), &create<T>, &destroy<T>, vtable};
}

}  // namespace capstan::sdk

/// Lists a plugin's components, once, at namespace scope of one source file:
///
///   CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Adam, "Adam">, &capstan::sdk::optimizer<AdamW, "AdamW">)
#define CAPSTAN_PLUGIN(...)                                                                   \
  extern "C" {                                                                                \
  extern const char capstan_manifest[] __attribute__((visibility("hidden")));                 \
  __attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {      \
    static const capstan_component* const components[] = {__VA_ARGS__};                       \
    static const capstan_plugin plugin = {                                                    \
        sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR,                         \
        capstan_manifest,       components,        sizeof(components) / sizeof(*components)}; \
    return &plugin;                                                                           \
  }                                                                                           \
  }
