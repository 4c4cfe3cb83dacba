#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "capstan/sdk/component.hpp"
#include "capstan/sdk/mapped_file.hpp"
#include "capstan/sdk/output_path.hpp"

/// Rows of whole numbers in two files, NAME.idx and NAME.bin: the format in which Megatron-LM and DeepSpeed keep
/// tokens, and DeepSpeed's data analysis its indices. Little endian, as the machines that Capstan runs on. Needs
/// nothing of LibTorch.
///
///   .idx: "MMIDIDX\0\0", u64 version 1, u8 type, u64 rows, u64 documents,
///         i32[rows] elements of each row, i64[rows] offset of each row in .bin in bytes, i64[documents] rows
///   .bin: the values of all rows, one after another
namespace capstan::sdk {

enum class IndexedType { kU8, kI8, kI16, kI32, kI64, kU16, kU32, kU64 };

inline std::size_t width_of(IndexedType type) {
  constexpr std::array<std::size_t, 8> kWidths = {1, 1, 2, 4, 8, 2, 4, 8};
  return kWidths[static_cast<std::size_t>(type)];
}

inline const char* name_of(IndexedType type) {
  constexpr std::array<const char*, 8> kNames = {"uint8", "int8",   "int16",  "int32",
                                                 "int64", "uint16", "uint32", "uint64"};
  return kNames[static_cast<std::size_t>(type)];
}

/// The smallest type that holds all numbers from `low` to `high`, as DeepSpeed's analysis chooses it.
inline IndexedType type_for(std::int64_t low, std::int64_t high) {
  if (low >= 0) {
    if (high <= 0xFF) return IndexedType::kU8;
    if (high <= 0xFFFF) return IndexedType::kU16;
    return high <= 0xFFFFFFFF ? IndexedType::kU32 : IndexedType::kU64;
  }
  const auto fits = [&](auto limits) { return low >= limits.min() && high <= limits.max(); };
  if (fits(std::numeric_limits<std::int8_t>())) return IndexedType::kI8;
  if (fits(std::numeric_limits<std::int16_t>())) return IndexedType::kI16;
  return fits(std::numeric_limits<std::int32_t>()) ? IndexedType::kI32 : IndexedType::kI64;
}

namespace detail {

inline constexpr char kIndexMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::size_t kIndexHeader = 9 + 8 + 1 + 8 + 8;

[[noreturn]] inline void fail_with_reason(const std::string& path, const char* what, int reason) {
  throw Error(path + ": " + what + ": " + std::strerror(reason) + ".");
}

/// A file that is written aside, and has its name only when it is whole. A device or a pipe is written into; a link
/// stays, and its target is replaced. Throws Error where another process is writing the file: one file would hold parts
/// of both.
class AsideFile {
 public:
  explicit AsideFile(const std::string& path) : AsideFile(output_path(path)) {}
  explicit AsideFile(const OutputPath& to)
      : path_(to.path.string()), aside_(path_ + (to.is_stream ? "" : ".part")), is_stream_(to.is_stream) {
    file_ = is_stream_ ? std::fopen(aside_.c_str(), "wbe") : open_alone();
    if (file_ == nullptr) fail_with_reason(aside_, is_stream_ ? "cannot be written" : "cannot be created", errno);
    std::setvbuf(file_, nullptr, _IOFBF, std::size_t{1} << 20);
  }
  ~AsideFile() {
    // While the lock is held: afterwards another process may have a file of this name.
    if (!aside_.empty() && !is_stream_) ::unlink(aside_.c_str());
    if (file_) std::fclose(file_);
  }
  AsideFile(const AsideFile&) = delete;

  void write(const void* bytes, std::size_t count) {
    if (count > 0 && std::fwrite(bytes, 1, count, file_) != count) fail_with_reason(aside_, "cannot be written", errno);
  }
  template <class T>
  void put(T value) {
    write(&value, sizeof value);
  }
  /// Back to its begin, to read what was written.
  void rewind() {
    if (std::fflush(file_) != 0 || std::fseek(file_, 0, SEEK_SET) != 0) {
      fail_with_reason(aside_, "cannot be written", errno);
    }
  }
  std::size_t read(void* bytes, std::size_t count) { return std::fread(bytes, 1, count, file_); }
  void sync() {
    if (std::fflush(file_) != 0 || (!is_stream_ && ::fsync(::fileno(file_)) != 0)) {
      fail_with_reason(aside_, "cannot be written", errno);
    }
  }
  void rename() {
    if (is_stream_) return;
    if (::rename(aside_.c_str(), path_.c_str()) != 0) fail_with_reason(path_, "cannot be written", errno);
    aside_.clear();
  }

 private:
  /// Opens the file aside, empty and locked; null with errno where that fails. File systems without locks have none.
  std::FILE* open_alone() const {
    for (;;) {
      const int descriptor = ::open(aside_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (descriptor < 0) return nullptr;
      struct stat opened {};
      struct stat named {};
      const bool is_file = ::fstat(descriptor, &opened) == 0 && S_ISREG(opened.st_mode);
      if (is_file && ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        ::close(descriptor);
        throw Error(aside_ + ": another process is writing '" + path_ +
                    "'. Wait until it has ended, or choose another name.");
      }
      // The other process may have renamed or removed the file between open() and flock().
      const bool same =
          ::stat(aside_.c_str(), &named) == 0 && opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
      if (same && (!is_file || ::ftruncate(descriptor, 0) == 0)) {
        if (std::FILE* file = ::fdopen(descriptor, "w+b")) return file;
      }
      const int reason = errno;
      ::close(descriptor);
      errno = reason;
      if (same) return nullptr;
    }
  }

  std::string path_, aside_;
  bool is_stream_;
  std::FILE* file_ = nullptr;
};

}  // namespace detail

/// Reads NAME.idx and NAME.bin, mapped. Several threads may read.
class IndexedRows {
 public:
  /// Looks at what costs no time: header, sizes of the files, the first row and the last. Throws Error naming the file.
  ///
  /// DeepSpeed and Megatron number types differently: 6, 7 and 8 are uint16, uint32 and uint64 of the one, float64,
  /// float32 and uint16 of the other. How long the values are tells which it is; floats of 8 bytes are refused.
  explicit IndexedRows(const std::string& name) : index_(name + ".idx"), values_(name + ".bin") {
    const std::string& path = index_.path();
    if (index_.size() >= 6 && std::memcmp(index_.data(), "TNTIDX", 6) == 0) {
      throw Error(path + ": is an index of the legacy format TNTIDX. Convert it with the tool that wrote it.");
    }
    if (index_.size() < detail::kIndexHeader) {
      throw Error(path + ": has " + std::to_string(index_.size()) + " bytes, and the header of an index takes " +
                  std::to_string(detail::kIndexHeader) + ".");
    }
    if (std::memcmp(index_.data(), detail::kIndexMagic, sizeof detail::kIndexMagic) != 0) {
      throw Error(path + ": is not an index: it does not begin with MMIDIDX.");
    }
    if (const auto version = index_.at<std::uint64_t>(9); version != 1) {
      throw Error(path + ": has version " + std::to_string(version) + ", and 1 is known.");
    }
    rows_ = index_.at<std::uint64_t>(18);
    documents_ = index_.at<std::uint64_t>(26);
    check_lengths();
    type_ = resolve_type(index_.at<std::uint8_t>(17));
    check_ends();
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(rows_); }
  std::int64_t documents() const { return static_cast<std::int64_t>(documents_); }
  IndexedType type() const { return type_; }
  /// Values of all rows.
  std::int64_t values() const { return static_cast<std::int64_t>(values_.size() / width_of(type_)); }
  const std::string& index_path() const { return index_.path(); }
  const std::string& values_path() const { return values_.path(); }

  /// Values of a row; 0 <= row < rows().
  std::int64_t size(std::int64_t row) const {
    return index_.at<std::int32_t>(detail::kIndexHeader + static_cast<std::uint64_t>(row) * 4);
  }
  /// How many values stand before a row.
  std::int64_t begin(std::int64_t row) const { return offset(row) / static_cast<std::int64_t>(width_of(type_)); }
  /// The row at which a document begins, or the number of rows behind the last; 0 <= document < documents().
  std::int64_t document(std::int64_t document) const {
    return index_.at<std::int64_t>(detail::kIndexHeader + rows_ * 12 + static_cast<std::uint64_t>(document) * 8);
  }

  /// One value, counted over all rows; 0 <= place < values(). A uint64 above 2^63 - 1 becomes negative.
  std::int64_t value(std::int64_t place) const {
    std::int64_t out = 0;
    read(place, 1, &out);
    return out;
  }
  /// `count` values from `place` on, counted over all rows. Throws Error where a file was shortened since.
  void read(std::int64_t place, std::int64_t count, std::int64_t* out) const {
    values_.check_size();
    with_type([&](auto tag) {
      using T = decltype(tag);
      const std::byte* from = values_.data() + static_cast<std::uint64_t>(place) * sizeof(T);
      for (std::int64_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + static_cast<std::uint64_t>(i) * sizeof(T), sizeof value);
        out[i] = static_cast<std::int64_t>(value);
      }
    });
  }
  /// The values of one row.
  std::vector<std::int64_t> row(std::int64_t row) const {
    std::vector<std::int64_t> out(static_cast<std::size_t>(size(row)));
    if (!out.empty()) read(begin(row), size(row), out.data());
    return out;
  }

  /// Looks at every row: that sizes are not negative, that each row begins where the one before ends, and documents at
  /// rows that are there. `got_on` is told how many rows are done, now and then. Throws Error naming file and row.
  void check(const std::function<void(std::int64_t done)>& got_on = {}) const {
    index_.check_size();
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < rows(); ++i) {
      if (size(i) < 0) {
        throw Error(index_.path() + ": row " + std::to_string(i) + " has " + std::to_string(size(i)) + " values.");
      }
      if (offset(i) != next) {
        throw Error(index_.path() + ": row " + std::to_string(i) + " begins at byte " + std::to_string(offset(i)) +
                    " of " + values_.path() + ", and the rows before it end at " + std::to_string(next) + ".");
      }
      next += size(i) * static_cast<std::int64_t>(width_of(type_));
      if (got_on && (i & 0xFFFFF) == 0xFFFFF) got_on(i + 1);
    }
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < documents(); ++i) {
      const std::int64_t row = document(i);
      if (row < before || row > rows()) {
        throw Error(index_.path() + ": document " + std::to_string(i) + " begins at row " + std::to_string(row) +
                    ", behind " + std::to_string(before) + " of " + std::to_string(rows()) + " rows.");
      }
      before = row;
    }
  }

  /// Calls use(T()) with the type of the values.
  template <class Use>
  void with_type(Use&& use) const {
    switch (type_) {
      case IndexedType::kU8:
        return use(std::uint8_t());
      case IndexedType::kI8:
        return use(std::int8_t());
      case IndexedType::kI16:
        return use(std::int16_t());
      case IndexedType::kI32:
        return use(std::int32_t());
      case IndexedType::kI64:
        return use(std::int64_t());
      case IndexedType::kU16:
        return use(std::uint16_t());
      case IndexedType::kU32:
        return use(std::uint32_t());
      case IndexedType::kU64:
        return use(std::uint64_t());
    }
  }

 private:
  std::int64_t offset(std::int64_t row) const {
    return index_.at<std::int64_t>(detail::kIndexHeader + rows_ * 4 + static_cast<std::uint64_t>(row) * 8);
  }

  void check_lengths() const {
    const std::uint64_t rest = index_.size() - detail::kIndexHeader;
    const std::string& path = index_.path();
    const std::string told = std::to_string(rows_) + " rows and " + std::to_string(documents_) + " documents";
    if (rows_ > rest / 12 || documents_ > rest / 8 || rows_ * 12 + documents_ * 8 > rest) {
      throw Error(path + ": says that it has " + told + ", and has " + std::to_string(index_.size()) +
                  " bytes: it was cut short.");
    }
    const std::uint64_t behind = rest - rows_ * 12 - documents_ * 8;
    if (behind == 0) return;
    if (rows_ > 0 && behind == rows_) {
      throw Error(path +
                  ": has modes behind its documents: it is a multimodal data set, and tokens alone can be read.");
    }
    throw Error(path + ": has " + std::to_string(behind) + " bytes behind its " + told + ".");
  }

  /// By the number in the header, and by how long the values are.
  IndexedType resolve_type(std::uint8_t code) const {
    constexpr IndexedType kAlike[] = {IndexedType::kU8, IndexedType::kI8, IndexedType::kI16, IndexedType::kI32,
                                      IndexedType::kI64};
    if (code >= 1 && code <= 5) return kAlike[code - 1];
    if (code == 7) return IndexedType::kU32;
    if (code != 6 && code != 8) {
      throw Error(index_.path() + ": says that its values are of type " + std::to_string(code) +
                  ", and types are numbered from 1 to 8.");
    }
    const bool wide = ends_at(8), narrow = ends_at(2);
    if (narrow) return IndexedType::kU16;  // an index without values has both
    if (wide && code == 8) return IndexedType::kU64;
    if (wide)
      throw Error(index_.path() + ": its values are float64 (type 6 of Megatron), and tokens are whole numbers.");
    throw Error(values_.path() + ": has " + std::to_string(values_.size()) + " bytes, and " + index_.path() +
                " says otherwise: the two do not belong together, or one was cut short.");
  }

  bool ends_at(std::uint64_t width) const {
    if (rows_ == 0) return values_.size() == 0;
    const std::int64_t last = rows() - 1;
    return size(last) >= 0 &&
           static_cast<std::uint64_t>(offset(last)) + static_cast<std::uint64_t>(size(last)) * width == values_.size();
  }

  void check_ends() const {
    if (!ends_at(width_of(type_))) {
      const std::string found = std::to_string(values_.size()) + " bytes";
      if (rows_ == 0) throw Error(values_.path() + ": has " + found + ", and its index has no rows.");
      const std::int64_t last = rows() - 1;
      throw Error(values_.path() + ": has " + found + ", and " + index_.path() + " says that the last of " +
                  std::to_string(rows_) + " rows has " + std::to_string(size(last)) + " values of " + name_of(type_) +
                  " from byte " + std::to_string(offset(last)) +
                  " on: the two do not belong together, or one was cut short.");
    }
    if (rows_ > 0 && offset(0) != 0) {
      throw Error(index_.path() + ": its first row begins at byte " + std::to_string(offset(0)) + ".");
    }
  }

  MappedFile index_, values_;
  std::uint64_t rows_ = 0, documents_ = 0;
  IndexedType type_ = IndexedType::kU8;
};

/// Writes NAME.bin and NAME.idx, under other names until finish(). Types are numbered as DeepSpeed does, except uint16,
/// which is 6 there and 8 for Megatron. Throws Error with file and reason; then nothing is left.
class IndexedWriter {
 public:
  enum class Numbering { kDeepSpeed, kMegatron };

  IndexedWriter(const std::string& name, IndexedType type, Numbering numbering = Numbering::kDeepSpeed)
      : index_(name + ".idx"), values_(name + ".bin"), sizes_(name + ".sizes"), type_(type), numbering_(numbering) {
    if (numbering == Numbering::kMegatron && (type == IndexedType::kU32 || type == IndexedType::kU64)) {
      throw Error(name + ".idx: Megatron has no number for " + name_of(type) + ". Choose int32 or int64.");
    }
  }

  /// Appends values to the row under way. Each must fit the type.
  void append(std::span<const std::int64_t> values) {
    if (type_ == IndexedType::kI64 || type_ == IndexedType::kU64) {
      values_.write(values.data(), values.size_bytes());
    } else {
      buffer_.clear();
      const std::size_t width = width_of(type_);
      buffer_.resize(values.size() * width);
      // Little endian: the low bytes come first.
      for (std::size_t i = 0; i < values.size(); ++i) std::memcpy(&buffer_[i * width], &values[i], width);
      values_.write(buffer_.data(), buffer_.size());
    }
    in_row_ += static_cast<std::int64_t>(values.size());
  }
  void end_row() {
    if (in_row_ > std::numeric_limits<std::int32_t>::max()) {
      throw Error("row " + std::to_string(rows_) + " would have " + std::to_string(in_row_) +
                  " values, and the format has room for 2,147,483,647.");
    }
    sizes_.put(static_cast<std::int32_t>(in_row_));
    in_row_ = 0;
    ++rows_;
  }
  /// The next document begins at the next row; the first begins by itself.
  void end_document() { documents_.push_back(rows_); }
  /// A document that begins at the row before which it is called, as joined files have it.
  std::int64_t rows() const { return rows_; }

  /// Gives the files their names.
  void finish() {
    index_.write(detail::kIndexMagic, sizeof detail::kIndexMagic);
    index_.put(std::uint64_t{1});
    index_.put(code());
    index_.put(static_cast<std::uint64_t>(rows_));
    index_.put(static_cast<std::uint64_t>(documents_.size()));
    each_size([&](std::int32_t size) { index_.put(size); });
    std::int64_t offset = 0;
    each_size([&](std::int32_t size) {
      index_.put(offset);
      offset += static_cast<std::int64_t>(size) * static_cast<std::int64_t>(width_of(type_));
    });
    index_.write(documents_.data(), documents_.size() * sizeof documents_[0]);
    values_.sync();
    index_.sync();
    values_.rename();
    index_.rename();
  }

 private:
  std::uint8_t code() const {
    constexpr std::uint8_t kCodes[] = {1, 2, 3, 4, 5, 6, 7, 8};
    if (numbering_ == Numbering::kMegatron && type_ == IndexedType::kU16) return 8;
    return kCodes[static_cast<std::size_t>(type_)];
  }

  template <class Take>
  void each_size(Take&& take) {
    sizes_.rewind();
    std::array<std::int32_t, 4096> some;
    for (std::int64_t done = 0; done < rows_;) {
      const auto count = static_cast<std::int64_t>(sizes_.read(some.data(), sizeof some) / sizeof some[0]);
      if (count == 0) throw Error("the sizes of the rows cannot be read again.");
      for (std::int64_t i = 0; i < count; ++i) take(some[static_cast<std::size_t>(i)]);
      done += count;
    }
  }

  detail::AsideFile index_, values_, sizes_;
  IndexedType type_;
  Numbering numbering_;
  std::vector<unsigned char> buffer_;
  std::vector<std::int64_t> documents_{0};
  std::int64_t rows_ = 0, in_row_ = 0;
};

}  // namespace capstan::sdk
