// Layer reduction: a student begins with layers of a deeper teacher (XTC, Wu et al. 2022, arXiv 2206.01859, section 4).

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/hf_folder.hpp"
#include "core/comm/as_one.hpp"
#include "core/errors.hpp"
#include "core/host_words.hpp"
#include "core/keep/keep.hpp"
#include "core/registry/config_mistakes.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSection = "compression_training.layer_reduction";

/// The teacher's tensors. Those of a checkpoint stay in `contents`.
struct Teacher {
  std::string where;
  CheckpointContents contents;
  GivenWeights weights;
};

bool is_within(const std::string& name, const std::string& module) {
  return name == module || name.starts_with(module + ".");
}

/// "h.3.ln" for "h.0.ln", from 0 and to 3: where just one part of the name is that number. Empty elsewhere.
std::string with_layer(const std::string& name, const std::string& from, const std::string& to) {
  std::string made;
  int found = 0;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    found += part == from ? 1 : 0;
    made += (begin == 0 ? "" : ".") + (part == from ? to : part);
    begin = end + 1;
  }
  return found == 1 ? made : "";
}

/// How a folder of transformers calls the layers of a deeper teacher that the student takes, by what the student's
/// model tells of its own.
HfFormat teacher_format(const LayerReductionConfig& section, const Model& student, const std::string& where) {
  HfFormat format = hf_format(student.describe(), student.description());
  if (format.layers_key.empty()) {
    throw RuntimeFault(where + ": is a folder of transformers, and model '" + student.description() +
                       "' does not say which key of config.json counts layers (\"layers_key\" of \"hf\"). Give a "
                       "checkpoint, or a safetensors file with the model's own names ('capstan export').");
  }
  std::erase(format.must_agree, format.layers_key);
  format.is_part = true;
  std::vector<HfFormat::Tensor> places;
  for (const HfFormat::Tensor& place : format.tensors) {
    bool in_layer = false;
    for (std::size_t j = 0; j < section.teacher_layer.size(); ++j) {
      const std::string layer = section.module_name_prefix + "." + std::to_string(j);
      if (!is_within(place.parameter, layer)) continue;
      in_layer = true;
      const std::string number = std::to_string(section.teacher_layer[j]);
      HfFormat::Tensor taken = place;
      taken.parameter = section.module_name_prefix + "." + number + place.parameter.substr(layer.size());
      taken.name = with_layer(place.name, std::to_string(j), number);
      taken.otherwise.clear();
      if (taken.name.empty()) throw RuntimeFault(where + ": '" + place.name + "' does not tell its layer's number.");
      places.push_back(taken);
    }
    const bool other = std::any_of(section.other_module_name.begin(), section.other_module_name.end(),
                                   [&](const std::string& module) { return is_within(place.parameter, module); });
    if (!in_layer && other) places.push_back(place);
  }
  format.tensors = places;
  return format;
}

std::string no_such_layer(std::size_t index, const LayerReductionConfig& section, const std::string& where,
                          const std::string& layers) {
  return std::string(kSection) + ".teacher_layer[" + std::to_string(index) +
         "]: " + std::to_string(section.teacher_layer[index]) + ", and of '" + section.module_name_prefix + "' " +
         where + " has the layers " + layers + ".";
}

/// Throws ConfigError for layers that a folder of transformers lacks, by its config.json.
void refuse_missing_layers(const fs::path& folder, const HfFormat& format, const LayerReductionConfig& section,
                           const std::string& where) {
  const std::optional<std::int64_t> count = hf_layers(folder, format);
  if (!count || *count < 1) return;
  const std::string there = *count == 1 ? "0" : "0 to " + std::to_string(*count - 1);
  ConfigMistakes mistakes;
  for (std::size_t i = 0; i < section.teacher_layer.size(); ++i) {
    if (section.teacher_layer[i] >= *count) mistakes.add(no_such_layer(i, section, where, there));
  }
  mistakes.throw_if_any();
}

void read_teacher(const std::string& path, const LayerReductionConfig& section, const Model& student,
                  Teacher& teacher) {
  std::error_code error;
  teacher.where = "teacher '" + path + "'";
  std::vector<SafetensorsEntry> entries;
  const fs::path dir(CheckpointName::parse(path).dir);
  if (fs::is_regular_file(path, error)) {
    entries = read_safetensors(path);
  } else if (!fs::is_directory(dir, error)) {
    throw RuntimeFault(teacher.where + ": there is no such checkpoint or safetensors file.");
  } else if (fs::exists(dir / "config.json", error) && !fs::exists(dir / "latest", error)) {
    const HfFormat format = teacher_format(section, student, teacher.where);
    refuse_missing_layers(dir, format, section, teacher.where);
    entries = read_hf_folder(dir, format);
  } else {
    teacher.weights = checkpoint_weights(path, /*takes_files=*/false, student, teacher.contents);
  }
  for (SafetensorsEntry& entry : entries) teacher.weights.emplace(entry.name, std::move(entry));
}

/// "3" of "blocks.3.fc.weight" behind the prefix "blocks"; nothing where a number does not follow.
std::optional<std::int64_t> number_behind(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix + ".")) return std::nullopt;
  const std::string rest = name.substr(prefix.size() + 1);
  const std::string number = rest.substr(0, rest.find('.'));
  if (number.empty() || number.size() > 9 || number.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(number);
}

/// "0 to 11", "0, 2", or "none".
template <class Names>
std::string layers_of(const Names& names, const std::string& prefix) {
  std::set<std::int64_t> numbers;
  for (const std::string& name : names) {
    if (const auto number = number_behind(name, prefix)) numbers.insert(*number);
  }
  if (numbers.empty()) return "none";
  std::string text;
  const bool in_a_row = *numbers.rbegin() - *numbers.begin() + 1 == static_cast<std::int64_t>(numbers.size());
  if (in_a_row && numbers.size() > 2) {
    return std::to_string(*numbers.begin()) + " to " + std::to_string(*numbers.rbegin());
  }
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

/// Which of the teacher's tensors each tensor of the student takes.
class Reduction {
 public:
  Reduction(const LayerReductionConfig& section, const Model& student, const Teacher& teacher)
      : section_(section), teacher_(teacher) {
    for (const auto* list : {&student.parameters(), &student.buffers()}) {
      for (const NamedTensor& named : *list) {
        if (named.added || !named.persistent) continue;
        names_.push_back(named.name);
        shapes_.emplace(named.name, named.tensor.sizes().vec());
      }
    }
    for (const auto& [name, entry] : teacher.weights) teacher_names_.push_back(name);
  }

  /// Throws ConfigError with all that the section says of layers and modules which are not there.
  GivenWeights weights() {
    ConfigMistakes mistakes;
    mistakes.gather([&] { check_depth(); });
    for (const std::string& module : section_.other_module_name) mistakes.gather([&] { check_module(module); });
    // Of a prefix that is wrong the teacher has no layers either.
    const bool known = layers_of(names_, section_.module_name_prefix) != "none";
    for (std::size_t i = 0; known && i < section_.teacher_layer.size(); ++i) {
      mistakes.gather([&] { check_teacher_layer(i); });
    }
    mistakes.throw_if_any();
    for (const std::string& name : names_) {
      if (const auto layer = number_behind(name, section_.module_name_prefix)) {
        const std::int64_t from = section_.teacher_layer[static_cast<std::size_t>(*layer)];
        const std::string rest = name.substr((section_.module_name_prefix + "." + std::to_string(*layer)).size());
        take(name, section_.module_name_prefix + "." + std::to_string(from) + rest);
      }
    }
    for (const std::string& module : section_.other_module_name) take_module(module);
    return std::move(given_);
  }

 private:
  void check_depth() const {
    const auto count = static_cast<std::int64_t>(section_.teacher_layer.size());
    std::set<std::int64_t> layers;
    for (const std::string& name : names_) {
      if (const auto number = number_behind(name, section_.module_name_prefix)) layers.insert(*number);
    }
    const bool fits = static_cast<std::int64_t>(layers.size()) == count && !layers.empty() && *layers.begin() == 0 &&
                      *layers.rbegin() == count - 1;
    if (fits) return;
    throw ConfigError(
        std::string(kSection) + ".keep_number_layer: " + std::to_string(count) + ", but of '" +
        section_.module_name_prefix + "' the student has the layers " + layers_of(names_, section_.module_name_prefix) +
        (layers.empty() ? ". Correct module_name_prefix." : ". Build the student with as many layers as are kept."));
  }

  void take(const std::string& name, const std::string& from) {
    const auto found = teacher_.weights.find(from);
    if (found == teacher_.weights.end()) {
      throw RuntimeFault(teacher_.where + ": has no '" + from + "', which '" + name +
                         "' of the student is to take. Of '" + section_.module_name_prefix +
                         "' the teacher has the layers " + layers_of(teacher_names_, section_.module_name_prefix) +
                         ".");
    }
    if (found->second.values.sizes() != at::IntArrayRef(shapes_.at(name))) {
      throw RuntimeFault(teacher_.where + ": '" + from + "' is " + c10::str(found->second.values.sizes()) + ", and '" +
                         name + "' of the student " + c10::str(at::IntArrayRef(shapes_.at(name))) + ".");
    }
    given_.insert_or_assign(name, found->second);
  }

  void check_teacher_layer(std::size_t index) const {
    const std::int64_t layer = section_.teacher_layer[index];
    const bool there = std::any_of(teacher_names_.begin(), teacher_names_.end(), [&](const std::string& name) {
      return number_behind(name, section_.module_name_prefix) == layer;
    });
    if (there) return;
    throw ConfigError(
        no_such_layer(index, section_, teacher_.where, layers_of(teacher_names_, section_.module_name_prefix)));
  }

  void check_module(const std::string& module) const {
    const bool there =
        std::any_of(names_.begin(), names_.end(), [&](const std::string& name) { return is_within(name, module); });
    if (there) return;
    throw ConfigError(std::string(kSection) + ".other_module_name: the student has no module '" + module + "'.");
  }

  void take_module(const std::string& module) {
    for (const std::string& name : names_) {
      if (is_within(name, module)) take(name, name);
    }
  }

  const LayerReductionConfig& section_;
  const Teacher& teacher_;
  std::vector<std::string> names_, teacher_names_;           // of tensors
  std::map<std::string, std::vector<std::int64_t>> shapes_;  // of the student's
  GivenWeights given_;
};

}  // namespace

void Keep::load_teacher(const std::string& path) {
  const at::NoGradGuard no_grad;
  const LayerReductionConfig& section = parts_.config.compression.layer_reduction;
  if (!section.enabled) throw ConfigError(std::string(kSection) + ": is not enabled, so that a teacher is of no use.");
  Teacher teacher;
  GivenWeights given;
  as_one(*parts_.communicator, "load_teacher, check", [&] {
    read_teacher(path, section, parts_.model, teacher);
    given = Reduction(section, parts_.model, teacher).weights();
  });
  take_given(given, "load_teacher");
}

void Keep::refuse_without_teacher() const {
  if (!wants_teacher_) return;
  throw RuntimeFault(std::string(kSection) + ": the student has no layers of a teacher yet. Call " +
                     engine_call("load_teacher") + ", or load a checkpoint.");
}

}  // namespace capstan
