#include "sdk/conformance/component_under_test.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "core/components/tokenizers.hpp"
#include "core/memory/vector_math.hpp"
#include "core/model/batch.hpp"
#include "core/registry/plugin_call.hpp"
#include "core/registry/plugin_library.hpp"
#include "sdk/conformance/device_under_test.hpp"

namespace capstan::conformance {
namespace {

at::Tensor& tensor(capstan_tensor handle) { return *reinterpret_cast<at::Tensor*>(handle); }

capstan_status copy(void*, capstan_tensor out, capstan_tensor in, capstan_error* error) {
  return guarded(error, [&] { tensor(out).copy_(tensor(in).view_as(tensor(out))); });
}

capstan_status group_numbers(const capstan_group* raw, capstan_str name, double* out, std::size_t count,
                             capstan_error* error) {
  return guarded(error, [&] {
    const auto& group = *reinterpret_cast<const Group*>(raw);
    const Json* value = group.numbers.find(as_view(name));
    const auto number = [](const Json& item) {
      return item.is_bool() ? static_cast<double>(item.as_bool()) : item.as_number();
    };
    if (value && count == 1 && (value->is_number() || value->is_bool())) {
      *out = number(*value);
    } else if (value && value->is_array() && value->size() == count) {
      std::transform(value->as_array().begin(), value->as_array().end(), out, number);
    } else {
      throw PluginError("the group has no " + std::to_string(count) + " number(s) of the name '" +
                        std::string(as_view(name)) + "'.");
    }
  });
}

at::Tensor& batch_entry(capstan_batch* batch, capstan_str name) {
  const auto found = batch->tensors.find(as_view(name));
  if (found == batch->tensors.end()) {
    throw PluginError("the batch has no tensor '" + std::string(as_view(name)) + "'.");
  }
  return found->second;
}

void lend_batches(capstan_host& host) {
  host.batch_tensor = [](capstan_batch* batch, capstan_str name, capstan_tensor* out, capstan_error* error) {
    return guarded(error, [&] { *out = reinterpret_cast<capstan_tensor>(&batch_entry(batch, name)); });
  };
  host.batch_set_tensor = [](capstan_batch* batch, capstan_str name, capstan_tensor value, capstan_error* error) {
    return guarded(error, [&] { batch->tensors.insert_or_assign(std::string(as_view(name)), tensor(value)); });
  };
  host.batch_number = [](capstan_batch* batch, capstan_str name, double* out, int* found, capstan_error*) {
    const auto number = batch->numbers.find(as_view(name));
    *found = number != batch->numbers.end();
    if (*found) *out = number->second;
    return CAPSTAN_OK;
  };
  host.batch_set_number = [](capstan_batch* batch, capstan_str name, double value, capstan_error* error) {
    return guarded(error, [&] { batch->numbers.insert_or_assign(std::string(as_view(name)), value); });
  };
  host.batch_visit = [](capstan_batch* batch, const capstan_visitor* visitor, capstan_error*) {
    for (auto& [name, entry] : batch->tensors) {
      visitor->tensor(visitor->ctx, as_str(name), reinterpret_cast<capstan_tensor>(&entry), CAPSTAN_ROLE_BUFFER);
    }
    return CAPSTAN_OK;
  };
  host.layer = [](capstan_batch*, const capstan_layer_call* call, const capstan_inner* inner, capstan_tensor* out,
                  capstan_error* error) {
    return inner->run(inner->ctx, call->hidden, call->arguments, call->argument_count, out, error);
  };
  host.recompute = [](capstan_batch*, const capstan_layer_call* call, const capstan_inner* inner,
                      const capstan_recompute*, capstan_tensor* out, capstan_error* error) {
    return inner->run(inner->ctx, call->hidden, call->arguments, call->argument_count, out, error);
  };
  host.layer_names = [](void*, void* taker, void (*take)(void*, capstan_str), capstan_error*) {
    for (const std::string name : {"blocks.0", "blocks.1"}) take(taker, as_str(name));
    return CAPSTAN_OK;
  };
  host.record = [](void*, capstan_str, double, capstan_error*) { return CAPSTAN_OK; };
  host.tell = host.record;
  host.told = [](void*, capstan_str, double*, int* found, capstan_error*) {
    *found = 0;
    return CAPSTAN_OK;
  };
  host.difficulty = [](void*, capstan_str, std::int64_t step, std::int64_t* out, capstan_error*) {
    *out = step;
    return CAPSTAN_OK;
  };
}

/// A value for a parameter that must be given.
Json some_value(const KeySpec& spec) {
  if (!spec.choices.empty()) return spec.choices.front();
  const double low = spec.minimum.value_or(spec.maximum ? *spec.maximum - 1 : 1);
  const double inside = spec.exclusive_minimum ? (spec.maximum ? (low + *spec.maximum) / 2 : low + 1) : low;
  switch (spec.type) {
    case KeySpec::Type::kBoolean:
      return false;
    case KeySpec::Type::kInteger:
      // Counts of steps and samples: large enough to mean something.
      return static_cast<std::int64_t>(spec.maximum ? *spec.maximum : std::max(inside, 100.0));
    case KeySpec::Type::kNumber:
      return inside;
    case KeySpec::Type::kArray: {
      Json list = Json::array();
      for (std::size_t i = 0; i < spec.length.value_or(1); ++i) {
        if (spec.element == KeySpec::Type::kString) {
          list.push_back("x");
        } else {
          list.push_back(inside);
        }
      }
      return list;
    }
    case KeySpec::Type::kObject:
      return Json::object();
    default:
      return "x";
  }
}

}  // namespace

capstan_host make_test_host() {
  capstan_host host = make_host();
  host.log = [](void*, int, capstan_str) {};
  host.all_reduce_sum = [](void*, capstan_tensor, capstan_error*) { return CAPSTAN_OK; };
  host.broadcast = [](void*, capstan_tensor, std::uint32_t, capstan_error*) { return CAPSTAN_OK; };
  host.all_to_all = &copy;
  host.all_gather = &copy;
  // Who is alone is alone in every group.
  host.split = [](void*, std::uint32_t, const capstan_host** group, capstan_error*) {
    static const capstan_host itself = make_test_host();
    *group = &itself;
    return CAPSTAN_OK;
  };
  host.group_numbers = &group_numbers;
  host.visit_parameters = [](void*, const capstan_visitor*, capstan_error*) { return CAPSTAN_OK; };
  lend_batches(host);
  lend_tokenizers(host);
  return host;
}

Json default_params(const ComponentManifest& component) {
  Json params = Json::object();
  for (const KeySpec& spec : component.params) {
    if (spec.fallback) {
      params[spec.name] = *spec.fallback;
    } else if (spec.required) {
      params[spec.name] = some_value(spec);
    }
  }
  return params;
}

ComponentUnderTest::ComponentUnderTest(const Context& context, const ComponentManifest& manifest, const Json& params,
                                       const std::function<void(capstan_host&)>& change)
    : host_(std::make_unique<capstan_host>(make_test_host())) {
  prepare_vector_math();  // as an engine does
  open_device(context, manifest);
  if (change) change(*host_);
  try {
    registry_ = std::make_unique<Registry>(PluginIndex::of({read_plugin(context.plugin)}));
    component_ = std::make_unique<Component>(
        registry_->create("create", manifest.kind, manifest.type, params, host_.get(), manifest.device));
  } catch (const PluginError& error) {
    throw Broken(error.what());
  }
}

const capstan_component* descriptor_of(const Context& context, const ComponentManifest& manifest) {
  const capstan_plugin* plugin = load_plugin_library(read_plugin(context.plugin));
  for (std::size_t i = 0; i < plugin->component_count; ++i) {
    const capstan_component* component = plugin->components[i];
    if (as_view(component->kind) == manifest.kind && as_view(component->type) == manifest.type) return component;
  }
  throw Broken("the descriptor is not there.");
}

Creation create(const capstan_component* descriptor, const capstan_host* host, std::string_view params) {
  Creation made;
  capstan_error error;
  made.status = descriptor->create(host, as_str(params), &made.self, &error);
  made.error = error.text;
  return made;
}

}  // namespace capstan::conformance
