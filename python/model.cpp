#include "python/model.hpp"

#include <unordered_set>

#include "capstan/sdk/model.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan::python {

namespace py = pybind11;

/// capstan_model, whose functions are those of C.
struct ModuleModel::Functions {
  static ModuleModel& of(void* self) { return *static_cast<ModuleModel*>(self); }

  static capstan_status visit(void* self, const capstan_visitor* visitor, capstan_error* error) {
    return guarded(error, [&] {
      const ModuleFacts& facts = of(self).facts_;
      const auto show = [&](const auto& list, capstan_role role) {
        for (const auto& [name, tensor] : list) visitor->tensor(visitor->ctx, as_str(name), sdk::lend(tensor), role);
      };
      if (visitor->tensor) {
        show(facts.parameters, CAPSTAN_ROLE_PARAMETER);
        show(facts.buffers, CAPSTAN_ROLE_BUFFER);
      }
      if (!visitor->module) return;
      for (const auto& [path, type] : facts.modules) visitor->module(visitor->ctx, as_str(path), as_str(type));
    });
  }

  static capstan_status forward(void* self, capstan_batch*, capstan_tensor* loss, capstan_error* error) {
    ModuleModel& model = of(self);
    return guarded(error, [&] {
      try {
        const py::gil_scoped_acquire lock;
        *loss = sdk::give(sdk::scalar_loss(model.step()));
      } catch (...) {
        model.thrown = std::current_exception();
        throw;
      }
    });
  }

  static capstan_status training(void* self, int on, capstan_error* error) {
    ModuleModel& model = of(self);
    return guarded(error, [&] {
      try {
        const py::gil_scoped_acquire lock;
        model.module_.attr("train")(on != 0);
      } catch (...) {
        model.thrown = std::current_exception();
        throw;
      }
    });
  }

  static capstan_status describe(void* self, capstan_sink* sink, capstan_error* error) {
    return guarded(error, [&] { sink->text += of(self).facts_.facts; });
  }

  static constexpr capstan_model kVtable = {
      sizeof(capstan_model), &visit, &forward, &training, &describe, nullptr, nullptr};
};

void ModuleModel::rethrow() {
  if (thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
}

Model ModuleModel::model_of(ModuleModel& self) {
  return Model(&Functions::kVtable, &self, nullptr, self.facts_.description);
}

}  // namespace capstan::python
