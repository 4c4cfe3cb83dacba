// The folders of ds_to_universal: zero/<parameter>/<state>.pt, each with a whole tensor, and zero/optimizer_state.pt.

#include <algorithm>
#include <set>
#include <system_error>

#include "core/checkpoint/deepspeed/optimizer_members.hpp"
#include "core/checkpoint/deepspeed/reading.hpp"
#include "core/errors.hpp"

namespace capstan::deepspeed {
namespace {

namespace fs = std::filesystem;

constexpr const char *kMasters = "fp32", *kStep = "step";

/// The states that a parameter has files of.
std::set<std::string> state_files(const fs::path& folder) {
  std::set<std::string> states;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().extension() == ".pt") states.insert(entries->path().stem().string());
  }
  if (error) throw RuntimeFault("checkpoint folder '" + folder.string() + "': " + error.message() + ".");
  return states;
}

/// A tensor, which may be a dict's member "param".
TorchValue tensor_of(const TorchFile& file) {
  const TorchValue root = TorchValue::root_of(file);
  return root.is(Pickle::Kind::kDict) ? root.at("param") : root;
}

void check_folder_name(const TorchValue& shapes, const std::string& name) {
  if (!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos) return;
  shapes.fail("'" + name + "' cannot be a parameter: it is not the name of a folder of zero/.");
}

void add_files(Reading& reading, const Shape& parameter, const std::set<std::string>& states) {
  for (const std::string& state : states) {
    const TorchFile file(reading.folder.path / "zero" / parameter.name / (state + ".pt"));
    if (state == kStep) {
      reading.set_step(parameter.name, TorchValue::root_of(file));
      continue;
    }
    const TorchValue tensor = tensor_of(file);
    const bool masters = state == kMasters;
    masters ? masters_of(reading, tensor) : flat_of(tensor);
    reading.add_whole(parameter, masters ? kParamState : state_of(state), tensor);
  }
}

}  // namespace

void read_universal(Reading& reading) {
  const fs::path zero = reading.folder.path / "zero";
  reading.optimizer.push_back(std::make_unique<TorchFile>(zero / "optimizer_state.pt"));
  const TorchValue optimizer = TorchValue::root_of(*reading.optimizer[0]);
  reading.parameter_groups = optimizer.find("param_groups");
  reading.loss_scaler = optimizer.find("loss_scaler");
  const auto stage = optimizer.find("zero_stage");
  reading.partitions_model = stage && stage->integer(0, 3) == 3;
  std::optional<std::set<std::string>> states;
  std::string first;
  const std::vector<TorchValue> groups = reading.model_root().at("param_shapes").items();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto of_stage3 = optimizer.find("optimizer_state_dict");
    const auto of_group = of_stage3 ? of_stage3->at("state").find(static_cast<std::int64_t>(group)) : std::nullopt;
    for (const Shape& parameter : shapes_of(groups[group])) {
      check_folder_name(groups[group], parameter.name);
      const std::set<std::string> here = state_files(zero / parameter.name);
      if (!states) states = here, first = parameter.name;
      if (here != *states || !here.contains(kMasters)) {
        throw RuntimeFault("checkpoint folder '" + (zero / parameter.name).string() + "': it has not the files of '" +
                           first + "', fp32.pt among them: some are missing.");
      }
      add_files(reading, parameter, here);
      const auto step = of_group ? of_group->find("step") : std::nullopt;
      if (step && !here.contains(kStep)) reading.set_step(parameter.name, *step);
      reading.optimized.push_back(parameter.name);
    }
  }
}

}  // namespace capstan::deepspeed
