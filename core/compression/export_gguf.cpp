#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/checkpoint/gguf_writer.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/compression/export_compressed.hpp"
#include "core/compression/named_pieces.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/pretrained/gguf_model.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlock = 32;      // values of a quantised block
constexpr int kQuantizationVersion = 2;  // of GGML's blocks

/// Throws RuntimeFault for codes that neither Q8_0 nor Q4_0 holds.
void check_blocks(const NamedPiece& piece) {
  const RowGroups& groups = piece.weight->groups;
  const int bits = piece.weight->plan->bits;
  const std::string where = "parameter '" + piece.place.parameter + "': ";
  const std::int64_t blocks = piece.weight->saved.values.numel() / kBlock;
  if (groups.columns % kBlock != 0) {
    throw RuntimeFault(where + "its rows of " + std::to_string(groups.columns) +
                       " elements are no multiple of 32, which the blocks of GGUF need. Use --to safetensors or hf.");
  }
  if (groups.has_zero_points) {
    throw RuntimeFault(where +
                       "asymmetric codes have zero points, which Q8_0 and Q4_0 lack. Train with "
                       "quantization_type \"symmetric\", or use --to safetensors or hf.");
  }
  const bool fits = bits == 8 ? groups.size() % kBlock == 0 : bits == 4 && groups.group == kBlock;
  if (fits) return;
  throw RuntimeFault(where + "it has " + described(bits, groups) +
                     ", which no block of GGUF is. Q4_0 holds 4 bits in groups of "
                     "32, which are " +
                     std::to_string(blocks) +
                     " groups of this weight, and Q8_0 holds 8 bits in "
                     "groups of 32 or a multiple of it. Train with those, or use --to safetensors or hf.");
}

/// Whether all scales are what float16 holds, and if not by how much they change.
void note_scales(double change, ExportReport& report) {
  if (change == 0) {
    report.notes.push_back("All scales are values of float16: the file holds the very weights that were trained.");
    return;
  }
  char text[160];
  std::snprintf(text, sizeof text,
                "Scales are rounded to float16: by %.2g of their size at most. With \"fp16-scales\" in "
                "capstan.corrections a training uses such scales itself.",
                change);
  report.notes.emplace_back(text);
}

GgufTensor as_blocks(CompressedWeights& weights, const NamedPiece& piece, double& change) {
  const int bits = piece.weight->plan->bits;
  const std::int64_t bytes = piece.numel() / kBlock * (2 + kBlock * bits / 8);
  const auto make = [&weights, piece, &change] {
    const CodedRows rows = piece.codes(weights);
    const double by = change_in_float16(rows.scales);
    if (!std::isfinite(by)) {
      throw RuntimeFault("parameter '" + piece.place.parameter +
                         "': it has a scale that is too large for float16, which GGUF needs. Use --to safetensors.");
    }
    change = std::max(change, by);
    return gguf_blocks(rows);
  };
  return {bits == 8 ? GgufType::kQ8_0 : GgufType::kQ4_0, piece.shape(),
          made_when_written(piece.place.name, {bytes}, at::kByte, make)};
}

/// Vectors are float32 in all files of llama.cpp.
GgufTensor as_values(CompressedWeights& weights, const NamedPiece& piece) {
  const bool vector = piece.shape().size() < 2;
  const at::ScalarType dtype = vector ? at::kFloat : piece.weight->values.values.scalar_type();
  const GgufType type = gguf_type(dtype, piece.place.name);
  if (!piece.is_laid_out()) return {type, piece.shape(), piece.values(weights, dtype)};
  const auto make = [&weights, piece, dtype] { return piece.laid_out(weights).to(dtype); };
  return {type, piece.shape(), made_when_written(piece.place.name, piece.shape(), dtype, make)};
}

bool fits_q8_0(const NamedPiece& piece) {
  const auto shape = piece.shape();
  return shape.size() == 2 && shape[1] % kBlock == 0 && piece.numel() > 0;
}

/// Rounded to Q8_0 here, as no training has rounded it.
GgufTensor as_rounded(CompressedWeights& weights, const NamedPiece& piece) {
  const auto make = [&weights, piece] {
    const CodedRows rows = rounded_to_q8_0(piece.laid_out(weights));
    if (!std::isfinite(change_in_float16(rows.scales))) {
      throw RuntimeFault("parameter '" + piece.place.parameter +
                         "': it has values that are not finite, or too large for Q8_0. Use --dtype float32.");
    }
    return gguf_blocks(rows);
  };
  const std::int64_t bytes = piece.numel() / kBlock * (2 + kBlock);
  return {GgufType::kQ8_0, piece.shape(), made_when_written(piece.place.name, {bytes}, at::kByte, make)};
}

GgufTensor divisors_tensor(const std::vector<float>& divisors) {
  const at::Tensor values = host_empty({static_cast<std::int64_t>(divisors.size())}, at::kFloat);
  std::copy(divisors.begin(), divisors.end(), values.mutable_data_ptr<float>());
  return {GgufType::kF32, values.sizes().vec(), {"rope_freqs.weight", values}};
}

/// llama.cpp's number for files whose matrices are mostly of a type.
int file_type(const std::vector<GgufTensor>& tensors) {
  const auto matrix =
      std::find_if(tensors.begin(), tensors.end(), [](const auto& one) { return one.shape.size() > 1; });
  const GgufType type = matrix == tensors.end() ? GgufType::kF32 : matrix->type;
  return type == GgufType::kF16    ? 1
         : type == GgufType::kQ4_0 ? 2
         : type == GgufType::kQ8_0 ? 7
         : type == GgufType::kBF16 ? 32
                                   : 0;
}

}  // namespace

ExportReport export_gguf(CompressedWeights& weights, const NamesElsewhere& names, const fs::path& out,
                         const GgufExtras& extras) {
  ExportReport report;
  double change = 0;
  bool coded = false, rounded = false;
  std::vector<GgufTensor> tensors;
  for (const NamedPiece& piece : pieces_of(weights, names)) {
    if (piece.coded()) check_blocks(piece);
    const bool rounds = extras.q8_0 && !piece.coded() && fits_q8_0(piece);
    coded = coded || piece.coded();
    rounded = rounded || rounds;
    tensors.push_back(piece.coded() ? as_blocks(weights, piece, change)
                      : rounds      ? as_rounded(weights, piece)
                                    : as_values(weights, piece));
    const at::Tensor& data = tensors.back().data.values;
    if (piece.coded()) {
      const std::string block = piece.weight->plan->bits == 8 ? "Q8_0: " : "Q4_0: ";
      piece.count(report, block + described(piece.weight->plan->bits, piece.weight->groups), data.numel());
    } else if (rounds) {
      piece.count(report, "rounded to Q8_0", data.numel());
    } else {
      piece.count_values(report, data.scalar_type());
    }
  }
  if (!extras.rope_divisors.empty()) tensors.push_back(divisors_tensor(extras.rope_divisors));
  Json metadata = names.facts;
  metadata["general.file_type"] = file_type(tensors);
  if (coded || rounded) metadata["general.quantization_version"] = kQuantizationVersion;
  write_aside(out,
              [&](const fs::path& aside) { report.file_bytes = write_gguf(aside, metadata, tensors, extras.entries); });
  if (coded) note_scales(change, report);
  return report;
}

NamesElsewhere gguf_names(const HfFormat& format, const Json& config) {
  NamesElsewhere names{format.model, gguf_metadata(config), {}};
  std::string homeless;
  for (const HfFormat::Tensor& tensor : format.tensors) {
    const std::optional<GgufPlace> place = gguf_place(config, tensor.name);
    if (!place || tensor.transposed) {
      homeless += " '" + tensor.name + "'";
      continue;
    }
    NamedRows& rows = names.tensors.emplace_back();
    rows.parameter = tensor.parameter;
    rows.name = place->name;
    rows.rotary_heads = place->rotary_heads;
    rows.plus_one = place->plus_one;
  }
  if (homeless.empty()) return names;
  throw RuntimeFault("model '" + format.model + "': llama.cpp has no tensor for" + homeless +
                     ". Use --to hf or safetensors.");
}

}  // namespace capstan
