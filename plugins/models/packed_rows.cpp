#include "packed_rows.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>

#include <utility>

namespace capstan::models {
namespace {

/// How many tokens follow one another in a row under one id.
std::vector<std::int64_t> runs_of(const at::Tensor& ids) {
  const at::Tensor host = ids.cpu().contiguous();
  const auto* id = host.const_data_ptr<std::int32_t>();
  const std::int64_t columns = ids.size(1);
  std::vector<std::int64_t> runs;
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    i % columns != 0 && id[i] == id[i - 1] ? ++runs.back() : (runs.push_back(1), 0);
  }
  return runs;
}

const at::Tensor& matrix(const sdk::BatchView& batch, const std::string& name, const std::string& other,
                         at::ScalarType type, at::IntArrayRef sizes) {
  const at::Tensor* const tensor = batch.find(name);
  if (tensor == nullptr) {
    throw sdk::Error(name + ": is missing beside " + other + ". Give both for rows of several documents, or neither.");
  }
  const bool fits = tensor->dim() == 2 && tensor->size(0) == sizes[0] && tensor->size(1) >= sizes[1];
  if (fits && tensor->scalar_type() == type) return *tensor;
  throw sdk::Error(name + ": got a " + c10::toString(tensor->scalar_type()) + " tensor of shape " +
                   c10::str(tensor->sizes()) + ". It must be " + (type == at::kInt ? "int32 " : "int64 ") +
                   c10::str(sizes) + ", as input_ids.");
}

/// The tensors, cut to the columns of the inputs; undefined where the batch has neither.
std::pair<at::Tensor, at::Tensor> read_ids(const sdk::BatchView& batch, at::IntArrayRef sizes) {
  const std::string documents = "document_ids", positions = "position_ids";
  if (batch.find(documents) == nullptr && batch.find(positions) == nullptr) return {};
  return {matrix(batch, documents, positions, at::kInt, sizes).narrow(1, 0, sizes[1]),
          matrix(batch, positions, documents, at::kLong, sizes).narrow(1, 0, sizes[1])};
}

}  // namespace

PackedRows::PackedRows(at::Tensor document_ids, at::Tensor position_ids)
    : document_ids_(std::move(document_ids)),
      position_ids_(std::move(position_ids)),
      lengths_(runs_of(document_ids_)) {}

PackedRows PackedRows::kept(const at::Tensor& places) const {
  const at::Tensor of_rows = places.expand({document_ids_.size(0), places.size(1)});
  PackedRows rows(document_ids_.gather(1, of_rows), position_ids_.gather(1, of_rows));
  rows.whole_lengths_ = whole_lengths().gather(1, of_rows);
  return rows;
}

at::Tensor PackedRows::whole_lengths() const {
  if (!is_whole()) return whole_lengths_;
  const at::Tensor lengths = at::tensor(lengths_, at::kLong);
  return at::repeat_interleave(lengths, lengths).view(position_ids_.sizes()).to(position_ids_.device());
}

std::vector<at::Tensor> PackedRows::split_positions() const {
  return position_ids_.reshape(-1).split_with_sizes(lengths_, 0);
}

std::vector<at::Tensor> PackedRows::split(const at::Tensor& heads) const {
  const at::Tensor tokens_first = heads.transpose(1, 2);  // as projections lay heads out: no copy
  const at::Tensor row = tokens_first.reshape({1, -1, heads.size(1), heads.size(3)}).transpose(1, 2);
  return row.split_with_sizes(lengths_, 2);
}

at::Tensor PackedRows::join(const std::vector<at::Tensor>& documents) {
  return documents.size() == 1 ? documents.front() : at::cat(documents, 2);
}

std::optional<PackedRows> read_packed_rows(const sdk::BatchView& batch, at::IntArrayRef sizes) {
  auto [documents, positions] = read_ids(batch, sizes);
  if (!documents.defined()) return std::nullopt;
  return PackedRows(std::move(documents), std::move(positions));
}

void check_packed_rows(const sdk::BatchView& batch, std::int64_t sequence_length, const TokenBounds& bounds) {
  const at::Tensor inputs = read_inputs(batch, sequence_length, bounds);
  const at::Tensor positions = read_ids(batch, inputs.sizes()).second;
  if (!positions.defined() || !positions.is_cpu()) return;
  const auto [low, high] = positions.aminmax();
  const auto smallest = low.item<std::int64_t>(), largest = high.item<std::int64_t>();
  if (smallest >= 0 && largest < sequence_length) return;
  throw sdk::Error("position_ids: holds position " + std::to_string(smallest < 0 ? smallest : largest) +
                   ", this model has positions 0 to " + std::to_string(sequence_length - 1) +
                   ". Shorten the documents, or raise the model's parameter '" + bounds.sequence + "'.");
}

}  // namespace capstan::models
