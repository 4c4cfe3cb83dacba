#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"
#include "core/text/json.hpp"

struct capstan_error {
  std::string text;
};
struct capstan_sink {
  std::string text;
};
/// The numbers of a group, as a JSON object.
struct capstan_group {
  capstan::Json numbers;
};

namespace capstan::testing {

class Meeting;

/// A rank of several that run as threads of a test; the default is alone.
struct Seat {
  Meeting* meeting = nullptr;
  std::uint32_t rank = 0, world_size = 1;
  void (*lend_collectives)(capstan_host& table) = nullptr;  // the table's ctx is a PluginHost
};

/// The least host that components can live in: it reads parameters and groups, and keeps what was logged.
class PluginHost {
 public:
  explicit PluginHost(Seat seat = {});
  PluginHost(const PluginHost&) = delete;

  const capstan_host* table() const { return &table_; }
  /// "warning: text", in order.
  const std::vector<std::string>& log() const { return log_; }
  Seat seat() const { return seat_; }

 private:
  Seat seat_;
  capstan_host table_{};
  std::vector<std::string> log_;
};

/// A component of a plugin of this build, created as the engine would: loaded, its parameters completed from the
/// manifest. Throws std::runtime_error with the plugin's own text.
class PluginComponent {
 public:
  /// `plugin` is the name given to capstan_add_plugin, "adam", or a file's path.
  PluginComponent(std::string_view kind, std::string_view plugin, std::string_view type,
                  const Json& params = Json::object(), Seat seat = {});
  ~PluginComponent();
  PluginComponent(const PluginComponent&) = delete;

  template <class Vtable>
  const Vtable& vtable() const {
    return *static_cast<const Vtable*>(descriptor_->vtable);
  }
  void* self() const { return self_; }
  const Json& params() const { return params_; }      // complete
  const Json& manifest() const { return manifest_; }  // the component's
  const std::vector<std::string>& log() const { return host_.log(); }
  Seat seat() const { return host_.seat(); }

 private:
  PluginHost host_;
  const capstan_component* descriptor_ = nullptr;
  Json manifest_;
  Json params_;
  void* self_ = nullptr;
};

/// Runs call(error) and throws std::runtime_error with the text it left, if it failed.
template <class Call>
void expect_ok(Call&& call) {
  capstan_error error;
  if (call(&error) != CAPSTAN_OK) throw std::runtime_error(error.text);
}

}  // namespace capstan::testing
