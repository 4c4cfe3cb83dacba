#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint/torch_file/torch_file.hpp"

namespace capstan {

/// A value of a file of torch.save, with the path to it: what is missing, of another type or out of its range is a
/// RuntimeFault that names the file, the path and what is expected. The file must outlive this.
class TorchValue {
 public:
  static TorchValue root_of(const TorchFile& file) { return {file, file.pickle().root(), ""}; }

  Pickle::Kind kind() const { return pickle().kind(id_); }
  bool is(Pickle::Kind kind) const { return this->kind() == kind; }
  /// A list or a tuple.
  bool is_list() const { return is(Pickle::Kind::kList) || is(Pickle::Kind::kTuple); }
  const TorchFile& file() const { return *file_; }
  Pickle::Id id() const { return id_; }
  const std::string& path() const { return path_; }

  /// The member of a dict; nothing where there is none, or None.
  std::optional<TorchValue> find(std::string_view key) const;
  std::optional<TorchValue> find(std::int64_t key) const;
  /// The member of a dict, which must be there.
  TorchValue at(std::string_view key) const;
  /// The items of a list or a tuple.
  std::vector<TorchValue> items() const;
  /// The members of a dict by name. Numbers as keys become texts.
  std::vector<std::pair<std::string, TorchValue>> members() const;
  /// The keys and values of a dict whose keys need not be texts.
  std::vector<std::pair<TorchValue, TorchValue>> pairs() const;

  /// An integer from `least` to `most`.
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  /// A finite number: an integer, a real number, or a tensor of one element.
  double number() const;
  bool boolean() const;
  std::string text() const;
  /// The shape that a torch.Size, a list or a tuple gives. Its elements are at most those that a tensor may have.
  std::vector<std::int64_t> shape() const;
  /// A tensor; see TorchFile::tensor().
  at::Tensor tensor() const { return file_->tensor(id_, path_); }
  void verify() const { file_->verify(id_, path_); }

  /// Refuses the value. `expected`: "a positive number".
  [[noreturn]] void refuse(const std::string& expected) const;
  /// Refuses the file because of this value. `defect`: a sentence about it.
  [[noreturn]] void fail(const std::string& defect) const;
  /// "3", "'text'", "a list of 3", "an object of os.system".
  std::string described() const;

 private:
  TorchValue(const TorchFile& file, Pickle::Id id, std::string path) : file_(&file), id_(id), path_(std::move(path)) {}
  const Pickle& pickle() const { return file_->pickle(); }

  const TorchFile* file_;
  Pickle::Id id_;
  std::string path_;
};

}  // namespace capstan
