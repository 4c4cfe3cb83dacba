#include "core/checkpoint/export.hpp"

#include <ATen/ops/empty.h>

#include <map>
#include <utility>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/checkpoint/pt_export.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

/// Parameters and buffers, each one tensor of its full shape, in the checkpoint's order.
Weights whole_weights(const CheckpointContents& contents) {
  Weights weights;
  std::map<std::string, std::size_t> places;
  for (const auto& part : contents.tensors) {
    if (part.state != "param" && part.state != "buffer") continue;
    if (part.values.numel() == elements_of(part.shape)) {
      weights.emplace_back(part.parameter, part.values.reshape(part.shape));
      continue;
    }
    const auto [place, fresh] = places.try_emplace(part.parameter, weights.size());
    if (fresh) weights.emplace_back(part.parameter, at::empty(part.shape, part.values.scalar_type()));
    weights[place->second].second.view({-1}).narrow(0, part.offset, part.values.numel()).copy_(part.values.view({-1}));
  }
  return weights;
}

/// At stage 3 the 16-bit weights are exported where the configuration asks for them, as DeepSpeed has it.
void check_gather_key(const CheckpointContents& contents, const std::string& where, at::ScalarType dtype) {
  constexpr const char* kKey = "stage3_gather_16bit_weights_on_model_save";
  if (dtype != at::kHalf && dtype != at::kBFloat16) return;
  const Json* config = contents.state.find("config");
  const Json* zero = config ? config->find("zero_optimization") : nullptr;
  const Json* world = contents.state.find("world_size");
  if (!zero || !zero->find("stage") || *zero->find("stage") != Json(3) || !world || *world == Json(1)) return;
  if (const Json* gathers = zero->find(kKey); gathers && *gathers == Json(true)) return;
  throw RuntimeFault("checkpoint '" + where +
                     "': it was trained at ZeRO stage 3, whose 16-bit weights are exported only where "
                     "zero_optimization." +
                     kKey + " is true. Train on with that key, or export in float32.");
}

Weights weights_of(const CheckpointContents& contents, const std::string& where, std::optional<at::ScalarType> dtype) {
  if (dtype) check_gather_key(contents, where, *dtype);
  Weights weights = whole_weights(contents);
  if (weights.empty()) throw RuntimeFault("checkpoint '" + where + "': it holds no weights to export.");
  for (auto& [name, tensor] : weights) {
    if (dtype && tensor.is_floating_point()) tensor = tensor.to(*dtype);
  }
  return weights;
}

}  // namespace

void export_hf(const std::filesystem::path& dir, const std::string& tag,
               const std::function<HfFormat(const Json& config)>& format_of, const std::filesystem::path& out,
               std::optional<at::ScalarType> dtype) {
  const CheckpointContents contents = read_checkpoint(dir, tag);
  const Json* config = contents.state.find("config");
  write_hf_folder(out, format_of(config ? *config : Json::object()), weights_of(contents, (dir / tag).string(), dtype));
}

void export_checkpoint(const std::filesystem::path& dir, const std::string& tag, ExportFormat format,
                       const std::filesystem::path& out, std::optional<at::ScalarType> dtype) {
  const Weights weights = weights_of(read_checkpoint(dir, tag), (dir / tag).string(), dtype);
  if (format == ExportFormat::kPt) return export_pt(out, weights);
  write_aside(out, [&](const std::filesystem::path& aside) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : weights) entries.push_back({name, tensor});
    Json metadata = Json::object();
    metadata["format"] = "pt";  // what readers of PyTorch weights look for
    write_safetensors(aside, entries, metadata);
  });
}

}  // namespace capstan
