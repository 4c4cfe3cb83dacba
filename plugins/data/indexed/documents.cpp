#include "plugins/data/indexed/documents.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace capstan::indexed {
namespace {

namespace fs = std::filesystem;

/// NAME of a file that is given as NAME, NAME.idx or NAME.bin.
std::string name_of_pair(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".idx" || extension == ".bin" ? (path.parent_path() / path.stem()).string() : path.string();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().extension() == ".idx") names.push_back(name_of_pair(entries->path()));
  }
  if (error) throw sdk::Error("folder '" + folder.string() + "': " + error.message() + ".");
  if (names.empty()) throw sdk::Error("folder '" + folder.string() + "' holds no .idx file.");
  std::sort(names.begin(), names.end());
  return names;
}

/// The loss mask of a file; none where there is no NAME.loss.
std::optional<sdk::MappedFile> mask_of(const std::string& name, std::int64_t tokens) {
  const std::string path = name + ".loss";
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  std::optional<sdk::MappedFile> mask(std::in_place, path);
  const auto wanted = static_cast<std::uint64_t>(tokens + 7) / 8;
  if (mask->size() == wanted) return mask;
  throw sdk::Error(path + ": has " + std::to_string(mask->size()) + " bytes, and a bit for each of the " +
                   std::to_string(tokens) + " tokens of " + name + ".bin takes " + std::to_string(wanted) +
                   ": it is the mask of other tokens. Make both again, or remove it.");
}

/// FNV-1a of 64 bits.
class Digest {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  }
  template <class T>
  void add_numbers(const T* numbers, std::size_t count) {
    add({reinterpret_cast<const char*>(numbers), count * sizeof *numbers});
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

/// All values of a small file, and of a large one some from places spread evenly.
void digest_values(Digest& digest, const sdk::IndexedRows& rows) {
  constexpr std::int64_t kProbe = 1024, kProbes = 64;
  std::vector<std::int64_t> some(kProbe);
  const std::int64_t values = rows.values(), last = std::max<std::int64_t>(values - kProbe, 0);
  const std::int64_t stride = std::max<std::int64_t>(last / (kProbes - 1), kProbe);
  for (std::int64_t begin = 0; begin < values; begin += stride) {
    const std::int64_t count = std::min(kProbe, values - begin);
    rows.read(begin, count, some.data());
    digest.add_numbers(some.data(), static_cast<std::size_t>(count));
  }
}

/// The token at which a document begins, or the number of tokens behind the last.
std::int64_t token_of(const sdk::IndexedRows& rows, std::int64_t document) {
  if (document == rows.documents()) return rows.values();
  const std::int64_t row = rows.document(document);
  return row == rows.rows() ? rows.values() : rows.begin(row);
}

}  // namespace

Documents::Documents(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      add(name_of_pair(path));
    } else {
      for (const std::string& name : names_in(path)) add(name);
    }
  }
}

std::vector<std::pair<std::string, std::int64_t>> Documents::indices() const {
  std::vector<std::pair<std::string, std::int64_t>> all;
  for (const Part& part : parts_) all.emplace_back(part.rows.index_path(), part.rows.values());
  return all;
}

bool Documents::has_loss_masks() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.mask.has_value(); });
}

std::vector<Documents::Part>::const_iterator Documents::part_of(std::int64_t token) const {
  return std::upper_bound(parts_.begin(), parts_.end(), token,
                          [](std::int64_t value, const Part& one) { return value < one.first_token; }) -
         1;
}

bool Documents::counts(std::int64_t token) const {
  const auto part = part_of(token);
  if (!part->mask) return true;
  const auto at = static_cast<std::uint64_t>(token - part->first_token);
  return (part->mask->at<std::uint8_t>(at / 8) >> (at % 8) & 1) != 0;
}

void Documents::add(const std::string& name) {
  sdk::IndexedRows rows(name);
  rows.check();
  // The last number names no document, but the end of all, where it is there.
  const std::int64_t numbers = rows.documents();
  const bool ends = numbers > 0 && rows.document(numbers - 1) == rows.rows();
  const std::int64_t tokens = rows.values(), documents = ends ? numbers - 1 : numbers;
  parts_.push_back({std::move(rows),
                    fs::path(name).filename().string(),
                    tokens_,
                    documents_,
                    documents,
                    mask_of(name, tokens),
                    0,
                    {}});
  first_rows_.push_back(rows_);
  std::error_code error;
  if (fs::exists(name + ".rows", error)) add_rows(parts_.back(), name);
  tokens_ += tokens;
  documents_ += documents;
}

Documents::Place Documents::document(std::int64_t number) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), number,
                                      [](std::int64_t value, const Part& part) { return value < part.first_document; });
  const Part& part = *(after - 1);
  const std::int64_t local = number - part.first_document, begin = token_of(part.rows, local);
  return {part.first_token + begin, token_of(part.rows, local + 1) - begin};
}

void Documents::add_rows(Part& part, const std::string& name) {
  const sdk::PackedRows packed(name);
  const std::int64_t documents = packed.first_document(packed.rows());
  if (documents != part.documents) {
    throw sdk::Error(packed.path() + ": has rows of " + std::to_string(documents) + " documents, and " +
                     part.rows.index_path() + " has " + std::to_string(part.documents) +
                     ": it is of other tokens. Make both again, or remove it.");
  }
  part.row_length = packed.length();
  part.row_begins.push_back(0);
  for (std::int64_t row = 0; row < packed.rows(); ++row) {
    part.row_begins.push_back(packed.first_document(row + 1));
    const std::int64_t tokens =
        token_of(part.rows, part.row_begins.back()) - token_of(part.rows, packed.first_document(row));
    if (tokens <= packed.length()) continue;
    throw sdk::Error(packed.path() + ": row " + std::to_string(row) + " has " + std::to_string(tokens) +
                     " tokens, and room for " + std::to_string(packed.length()) +
                     ": it is of other tokens. Make both again, or remove it.");
  }
  rows_ += packed.rows();
}

std::int64_t Documents::rows() const {
  const auto is_packed = [](const Part& part) { return part.row_length > 0; };
  const auto packed = std::find_if(parts_.begin(), parts_.end(), is_packed);
  const auto loose = std::find_if_not(parts_.begin(), parts_.end(), is_packed);
  if (packed == parts_.end() || loose == parts_.end()) return rows_;
  throw sdk::Error(loose->rows.index_path() + ": has no .rows file beside it, and " + packed->rows.index_path() +
                   " has one. Pack all files or none; \"documents\": \"separate\" takes each document by itself.");
}

std::int64_t Documents::row_length() const {
  std::int64_t most = 0;
  for (const Part& part : parts_) most = std::max(most, part.row_length);
  return most;
}

std::pair<std::int64_t, std::int64_t> Documents::row(std::int64_t number) const {
  const auto which = std::upper_bound(first_rows_.begin(), first_rows_.end(), number) - first_rows_.begin() - 1;
  const Part& part = parts_[static_cast<std::size_t>(which)];
  const auto local = static_cast<std::size_t>(number - first_rows_[static_cast<std::size_t>(which)]);
  return {part.first_document + part.row_begins[local], part.first_document + part.row_begins[local + 1]};
}

void Documents::read(std::int64_t begin, std::int64_t count, std::int64_t vocabulary, std::int64_t* out) const {
  auto part = part_of(begin);
  for (; count > 0; ++part) {
    const std::int64_t from = begin - part->first_token;
    const std::int64_t some = std::min(count, part->rows.values() - from);
    part->rows.read(from, some, out);
    const auto* bad = std::find_if(
        out, out + some, [&](std::int64_t token) { return token < 0 || (vocabulary > 0 && token >= vocabulary); });
    if (bad != out + some) {
      throw sdk::Error(part->rows.values_path() + ": token " + std::to_string(from + (bad - out)) + " is " +
                       std::to_string(*bad) +
                       (vocabulary > 0 ? ", and the model's vocabulary has " + std::to_string(vocabulary) +
                                             " entries. Use the tokeniser that the model was made for."
                                       : ", and tokens are not negative."));
    }
    out += some;
    begin += some;
    count -= some;
  }
}

std::uint64_t Documents::fingerprint(bool of_rows) const {
  Digest digest;
  for (const Part& part : parts_) {
    digest.add(part.name + '\n' + sdk::name_of(part.rows.type()));
    const std::int64_t sizes[] = {part.rows.rows(), part.rows.documents(), part.rows.values()};
    digest.add_numbers(sizes, std::size(sizes));
    digest_values(digest, part.rows);
    if (part.mask) digest.add({reinterpret_cast<const char*>(part.mask->data()), part.mask->size()});
    if (of_rows) digest.add_numbers(part.row_begins.data(), part.row_begins.size());
  }
  return digest.value();
}

}  // namespace capstan::indexed
