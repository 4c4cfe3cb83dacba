// Codes as compressed-tensors' "pack-quantized" has them.

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "core/checkpoint/output_file.hpp"
#include "core/compression/export_compressed.hpp"
#include "core/compression/named_pieces.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kWordBits = 32;
constexpr int kMostBits = 8;

std::int64_t words(std::int64_t codes, int bits) { return (codes * bits + kWordBits - 1) / kWordBits; }

/// Collects entries of a file, and what its readers must know of the codes.
class PackedFile {
 public:
  /// `for_transformers`: what is written must be what compressed-tensors reads, which knows no values -s and s.
  PackedFile(CompressedWeights& weights, bool for_transformers)
      : weights_(weights), for_transformers_(for_transformers) {}

  void add(const NamedPiece& piece) {
    if (!piece.coded()) return add_values(piece);
    const int bits = piece.weight->plan->bits;
    if (bits == 1 && !for_transformers_ && has_two_values(weights_.codes(*piece.weight))) {
      add_signs(piece);
    } else {
      add_codes(piece, std::max(bits, 2));
    }
  }

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  ExportReport& report() { return report_; }

  Json quantization_config() const {
    Json config = Json::object();
    config["quant_method"] = "compressed-tensors";
    config["format"] = "pack-quantized";
    config["quantization_status"] = "compressed";
    config["ignore"] = Json::array();
    config["config_groups"] = Json::object();
    for (std::size_t i = 0; i < schemes_.size(); ++i) {
      Json group = Json::object();
      group["targets"] = schemes_[i].second;
      group["weights"] = schemes_[i].first;
      group["format"] = "pack-quantized";
      config["config_groups"]["group_" + std::to_string(i)] = group;
    }
    return config;
  }

 private:
  /// Whether each code is 1 or -1, but where all values are zero anyway.
  static bool has_two_values(const CodedRows& rows) {
    const at::Tensor zero = rows.codes.view({rows.scales.numel(), -1}).eq(0);
    return !zero.logical_and(rows.scales.reshape({-1, 1}).ne(0)).any().item<bool>();
  }

  void add_values(const NamedPiece& piece) {
    const at::ScalarType dtype = piece.weight->values.values.scalar_type();
    entries_.push_back(piece.values(weights_, dtype));
    piece.count_values(report_, dtype);
  }

  void add_codes(const NamedPiece& piece, int bits) {
    const RowGroups& groups = piece.weight->groups;
    if (for_transformers_ && groups.has_zero_points && !groups.whole) return add_shifted(piece, bits);
    add_entries(piece, bits, [](const CodedRows& rows) { return rows; });
    if (groups.has_zero_points) add_zero_points(piece, bits);
    note_scheme(piece, bits, !groups.has_zero_points);
    piece.count(report_, described(bits, groups), bytes_of_last(groups.has_zero_points ? 4 : 3));
  }

  void add_zero_points(const NamedPiece& piece, int bits) {
    const RowGroups& groups = piece.weight->groups;
    const auto zero_points = [this, piece, bits] {
      const CodedRows all = piece.codes(weights_);
      check_fits(piece, all.zero_points, bits);
      return all.zero_points.to(at::kChar);
    };
    const std::string name = piece.place.name + "_zero_point";
    if (groups.whole) {
      const auto make = [zero_points] { return zero_points().narrow(0, 0, 1); };
      entries_.push_back(made_when_written(name, {1}, at::kChar, make));
    } else {
      const auto make = [zero_points, bits] { return packed_words(zero_points().t(), bits).t(); };
      entries_.push_back(made_when_written(name, {words(rows_in(piece), bits), groups.per_row}, at::kInt, make));
    }
  }

  /// Codes less their zero points, which take one bit more and no zero points: compressed-tensors 0.20 writes packed
  /// zero points of groups and rows, and its loader of transformers expects them unpacked.
  void add_shifted(const NamedPiece& piece, int bits) {
    if (bits == kMostBits) {
      throw RuntimeFault("parameter '" + piece.place.parameter +
                         "': transformers opens no asymmetric codes of 8 bits in more than one group. Train with "
                         "quantization_type \"symmetric\", or use --to safetensors.");
    }
    add_entries(piece, bits + 1, [piece, bits](const CodedRows& rows) {
      CodedRows shifted = rows;
      const std::int64_t each = rows.codes.size(1) / rows.scales.size(1);
      const at::Tensor levels = rows.codes.to(at::kInt).sub(rows.zero_points.repeat_interleave(each, 1));
      check_fits(piece, levels, bits + 1);
      shifted.codes = levels.to(at::kChar);
      return shifted;
    });
    note_scheme(piece, bits + 1, true);
    piece.count(report_, described(bits + 1, piece.weight->groups), bytes_of_last(3));
  }

  /// Values s and -s: as codes 0 and -1 with scale 2s and zero point -1/2, so that the formula of all codes holds.
  void add_signs(const NamedPiece& piece) {
    add_entries(piece, 1, [](const CodedRows& rows) {
      CodedRows signs = rows;
      signs.codes = rows.codes.gt(0).to(at::kChar).sub(1);
      signs.scales = rows.scales.mul(2);
      return signs;
    });
    const std::vector<std::int64_t> shape = entries_.back().values.sizes().vec();
    entries_.push_back(made_when_written(piece.place.name + "_zero_point", shape, at::kFloat,
                                         [shape] { return host_full(shape, -0.5, at::kFloat); }));
    note_scheme(piece, 1, false);
    piece.count(report_, described(1, piece.weight->groups), bytes_of_last(4));
  }

  /// weight_shape, weight_packed and weight_scale.
  void add_entries(const NamedPiece& piece, int bits, std::function<CodedRows(const CodedRows&)> turned) {
    const RowGroups& groups = piece.weight->groups;
    const std::int64_t rows = rows_in(piece);
    entries_.push_back({piece.place.name + "_shape", at::tensor(piece.shape(), at::kLong)});
    entries_.push_back(made_when_written(
        piece.place.name + "_packed", {rows, words(groups.columns, bits)}, at::kInt,
        [this, piece, bits, turned] { return packed_words(turned(piece.codes(weights_)).codes, bits); }));
    const std::vector<std::int64_t> shape =
        groups.whole ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{rows, groups.per_row};
    entries_.push_back(made_when_written(piece.place.name + "_scale", shape, at::kFloat, [this, piece, shape, turned] {
      return turned(piece.codes(weights_)).scales.narrow(0, 0, shape[0]).reshape(shape);
    }));
  }

  /// Throws RuntimeFault for numbers that `bits` bits do not hold.
  static void check_fits(const NamedPiece& piece, const at::Tensor& numbers, int bits) {
    const int reach = 1 << (bits - 1);
    if (numbers.ge(-reach).logical_and(numbers.lt(reach)).all().item<bool>()) return;
    throw RuntimeFault("parameter '" + piece.place.parameter +
                       "': a group whose values all have one sign has a zero point outside its codes, which the "
                       "format cannot hold. Train with quantization_type \"symmetric\", or in larger groups.");
  }

  void note_scheme(const NamedPiece& piece, int bits, bool symmetric) {
    const RowGroups& groups = piece.weight->groups;
    const bool per_channel = groups.per_row == 1;
    Json scheme = Json::object();
    scheme["num_bits"] = bits;
    scheme["type"] = "int";
    scheme["symmetric"] = symmetric;
    scheme["strategy"] = groups.whole ? "tensor" : per_channel ? "channel" : "group";
    if (!groups.whole && !per_channel) scheme["group_size"] = groups.size();
    scheme["dynamic"] = false;
    const std::string target = piece.place.name.substr(0, piece.place.name.rfind('.'));
    auto found = std::find_if(schemes_.begin(), schemes_.end(), [&](const auto& one) { return one.first == scheme; });
    if (found == schemes_.end()) found = schemes_.insert(found, {scheme, Json::array()});
    found->second.push_back(target);
  }

  static std::int64_t rows_in(const NamedPiece& piece) { return piece.weight->shape().size() < 2 ? 1 : piece.rows(); }
  std::int64_t bytes_of_last(std::size_t count) const {
    std::int64_t bytes = 0;
    for (std::size_t i = entries_.size() - count; i < entries_.size(); ++i) {
      bytes += entries_[i].values.numel() * static_cast<std::int64_t>(entries_[i].values.element_size());
    }
    return bytes;
  }

  CompressedWeights& weights_;
  bool for_transformers_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::pair<Json, Json>> schemes_;  // and the modules that have each
  ExportReport report_;
};

/// What takes more bits there than it was trained with.
void note_wider_codes(const std::vector<NamedPiece>& pieces, ExportReport& report) {
  const auto any = [&](auto&& is) {
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](const NamedPiece& piece) { return piece.coded() && is(*piece.weight); });
  };
  if (any([](const auto& weight) { return weight.plan->bits == 1; })) {
    report.notes.push_back("1-bit weights take 2 bits: compressed-tensors has no codes of the values -s and s.");
  }
  if (any([](const auto& weight) { return weight.groups.has_zero_points && !weight.groups.whole; })) {
    report.notes.push_back("Asymmetric weights take one bit more: transformers opens no zero points of groups.");
  }
}

}  // namespace

ExportReport export_packed(CompressedWeights& weights, const fs::path& out) {
  PackedFile file(weights, false);
  for (const NamedPiece& piece : pieces_of(weights)) file.add(piece);
  Json metadata = Json::object();
  metadata["format"] = "pt";
  if (weights.coded() > 0) metadata["quantization_config"] = file.quantization_config().dump();
  write_aside(out, [&](const fs::path& aside) {
    file.report().file_bytes = write_safetensors(aside, file.entries(), metadata).bytes;
  });
  return file.report();
}

ExportReport export_packed_hf(CompressedWeights& weights, const NamesElsewhere& names, const fs::path& out) {
  PackedFile file(weights, true);
  std::string dtype = "float32";
  const std::vector<NamedPiece> pieces = pieces_of(weights, names);
  for (const NamedPiece& piece : pieces) {
    file.add(piece);
    const at::ScalarType type = piece.weight->values.values.scalar_type();
    if (!piece.coded() && type != at::kFloat) dtype = type == at::kBFloat16 ? "bfloat16" : "float16";
  }
  note_wider_codes(pieces, file.report());
  Json config = names.facts;
  config["torch_dtype"] = dtype;
  if (weights.coded() > 0) config["quantization_config"] = file.quantization_config();
  std::error_code error;
  const bool is_new = !fs::exists(out, error);
  create_folders(out);
  try {
    write_aside(out / "model.safetensors", [&](const fs::path& aside) {
      Json metadata = Json::object();
      metadata["format"] = "pt";
      file.report().file_bytes = write_safetensors(aside, file.entries(), metadata).bytes;
      write_aside(out / "config.json", [&](const fs::path& text) { write_file(text, config.dump(2) + "\n"); });
    });
  } catch (...) {
    if (is_new) fs::remove(out, error);  // an empty folder; one that is not stays
    throw;
  }
  return file.report();
}

}  // namespace capstan
