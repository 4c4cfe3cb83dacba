#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"

/// NAME.rows beside NAME.idx and NAME.bin: which documents share a row of `length` tokens, so that short documents are
/// trained together. Documents of a row follow one another in NAME.bin. Little endian, nothing of LibTorch.
///
///   "CAPROWS1", u64 length, u64 rows, i64[rows + 1] documents: row i holds those from the i-th number to the next one
namespace capstan::sdk {
namespace detail {

inline constexpr char kRowsMagic[9] = "CAPROWS1";
inline constexpr std::uint64_t kRowsHeader = 8 + 8 + 8;

}  // namespace detail

/// Reads NAME.rows, mapped. Several threads may read.
class PackedRows {
 public:
  /// Throws Error naming the file for one that is not whole, or whose documents do not follow one another.
  explicit PackedRows(const std::string& name) : file_(name + ".rows") {
    const std::string& path = file_.path();
    if (file_.size() < detail::kRowsHeader || std::memcmp(file_.data(), detail::kRowsMagic, 8) != 0) {
      throw Error(path + ": does not begin with CAPROWS1, and so does not say which documents share a row.");
    }
    length_ = file_.at<std::int64_t>(8);
    rows_ = file_.at<std::int64_t>(16);
    const std::uint64_t numbers = (file_.size() - detail::kRowsHeader) / 8;
    if (length_ < 1 || rows_ < 0 || (file_.size() - detail::kRowsHeader) % 8 != 0 ||
        static_cast<std::uint64_t>(rows_) != numbers - 1) {
      throw Error(path + ": has " + std::to_string(file_.size()) + " bytes, and says that it has " +
                  std::to_string(rows_) + " rows of " + std::to_string(length_) + " tokens: it was cut short.");
    }
    if (first_document(0) != 0) {
      throw Error(path + ": row 0 begins at document " + std::to_string(first_document(0)) + ".");
    }
    for (std::int64_t row = 0; row < rows_; ++row) {
      if (first_document(row + 1) > first_document(row)) continue;
      throw Error(path + ": row " + std::to_string(row) + " goes from document " + std::to_string(first_document(row)) +
                  " to document " + std::to_string(first_document(row + 1)) + ".");
    }
  }

  const std::string& path() const { return file_.path(); }
  /// Tokens that a row has room for.
  std::int64_t length() const { return length_; }
  std::int64_t rows() const { return rows_; }
  /// The document at which a row begins, counted over the file; of rows(): the number of documents.
  std::int64_t first_document(std::int64_t row) const {
    return file_.at<std::int64_t>(detail::kRowsHeader + static_cast<std::uint64_t>(row) * 8);
  }

 private:
  MappedFile file_;
  std::int64_t length_ = 0, rows_ = 0;
};

/// Writes NAME.rows, which has its name after finish(). Throws Error.
class PackedRowsWriter {
 public:
  PackedRowsWriter(const std::string& name, std::int64_t length) : file_(name + ".rows"), length_(length) {}

  /// The next row holds so many of the documents that follow; at least one.
  void append(std::int64_t documents) { ends_.push_back(ends_.back() + documents); }
  std::int64_t rows() const { return static_cast<std::int64_t>(ends_.size()) - 1; }
  std::int64_t length() const { return length_; }
  void finish() {
    file_.write(detail::kRowsMagic, 8);
    file_.put(length_);
    file_.put(rows());
    file_.write(ends_.data(), ends_.size() * sizeof ends_[0]);
    file_.sync();
    file_.rename();
  }

 private:
  detail::AsideFile file_;
  std::int64_t length_;
  std::vector<std::int64_t> ends_ = {0};
};

}  // namespace capstan::sdk
