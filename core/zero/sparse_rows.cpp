#include "core/zero/sparse_rows.hpp"

#include <algorithm>

#include "core/host_tensor.hpp"

namespace capstan {

SparseRows::SparseRows(const std::vector<at::Tensor>& parameters) : lists_(parameters.size()) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters) {
    first_.push_back(count);
    count += 1 + (parameter.dim() > 0 ? parameter.size(0) : 0);
  }
  first_.push_back(count);
  marks_.resize(static_cast<std::size_t>(count));
}

void SparseRows::note(std::size_t i, const at::Tensor& gradient) {
  std::uint8_t* marks = marks_.data() + first_[i];
  if (gradient.layout() != at::kSparse) {
    marks[0] = 1;
    return;
  }
  const at::Tensor rows = gradient._indices().select(0, 0).cpu().contiguous();
  for (std::int64_t k = 0; k < rows.numel(); ++k) marks[1 + rows.const_data_ptr<std::int64_t>()[k]] = 1;
}

void SparseRows::agree(Communicator& communicator, const std::string& step) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    all.push_back(host_empty({static_cast<std::int64_t>(marks_.size())}, at::kByte));
  }
  std::copy(marks_.begin(), marks_.end(),
            all[static_cast<std::size_t>(communicator.rank())].mutable_data_ptr<std::uint8_t>());
  communicator.all_gather(step + ", rows of sparse gradients", all);
  for (const at::Tensor& rank : all) {
    const std::uint8_t* theirs = rank.const_data_ptr<std::uint8_t>();
    for (std::size_t k = 0; k < marks_.size(); ++k) marks_[k] = marks_[k] | theirs[k];
  }
}

const std::vector<std::int64_t>* SparseRows::rows(std::size_t i) const {
  const std::uint8_t* marks = marks_.data() + first_[i];
  if (marks[0] != 0) return nullptr;
  std::vector<std::int64_t>& list = lists_[i];
  list.clear();
  list.reserve(1);  // data() is not null even where there are none
  for (std::int64_t row = 0; row < first_[i + 1] - first_[i] - 1; ++row) {
    if (marks[1 + row] != 0) list.push_back(row);
  }
  return &list;
}

void SparseRows::drop() { std::fill(marks_.begin(), marks_.end(), 0); }

}  // namespace capstan
