#include "cli/data/indexed_documents.hpp"

#include <bit>
#include <filesystem>

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

std::string name_of(const std::string& path) {
  const bool ends = path.ends_with(".idx") || path.ends_with(".bin");
  return ends ? path.substr(0, path.size() - 4) : path;
}

}  // namespace

IndexedDocuments::IndexedDocuments(const std::string& path) : index_(name_of(path)) {
  const std::string name = name_of(path);
  index_.check();
  // The last number names no document but the end of all, where it is there.
  const std::int64_t numbers = index_.documents();
  documents_ = numbers > 0 && index_.document(numbers - 1) == index_.rows() ? numbers - 1 : numbers;
  if (fs::exists(name + ".loss")) {
    mask_.emplace(name + ".loss");
    const auto wanted = static_cast<std::uint64_t>(tokens() + 7) / 8;
    if (mask_->size() != wanted) {
      throw sdk::Error(mask_->path() + ": has " + std::to_string(mask_->size()) + " bytes, and a bit for each of the " +
                       std::to_string(tokens()) + " tokens of " + index_.values_path() + " takes " +
                       std::to_string(wanted) + ": it is the mask of other tokens. Make both again, or remove it.");
    }
  }
  if (!fs::exists(name + ".rows")) return;
  packed_.emplace(name);
  if (const std::int64_t packed = packed_->first_document(packed_->rows()); packed != documents_) {
    throw sdk::Error(packed_->path() + ": has rows of " + std::to_string(packed) + " documents, and " + index_path() +
                     " has " + std::to_string(documents_) + ": they are the rows of other tokens. Make both again.");
  }
}

std::int64_t IndexedDocuments::token_of(std::int64_t document) const {
  if (document == index_.documents()) return tokens();
  const std::int64_t row = index_.document(document);
  return row == index_.rows() ? tokens() : index_.begin(row);
}

IndexedDocuments::Place IndexedDocuments::document(std::int64_t number) const {
  const std::int64_t begin = token_of(number);
  return {begin, token_of(number + 1) - begin};
}

bool IndexedDocuments::counts(std::int64_t token) const {
  if (!mask_) return true;
  const auto at = static_cast<std::uint64_t>(token);
  return (mask_->at<std::uint8_t>(at / 8) >> (at % 8) & 1) != 0;
}

std::int64_t IndexedDocuments::counted(const Place& place) const {
  if (!mask_) return place.size;
  std::int64_t count = 0, token = place.begin;
  const std::int64_t end = place.begin + place.size;
  for (; token < end && token % 8 != 0; ++token) count += counts(token);
  for (; token + 8 <= end; token += 8)
    count += std::popcount(mask_->at<std::uint8_t>(static_cast<std::uint64_t>(token) / 8));
  for (; token < end; ++token) count += counts(token);
  return count;
}

std::vector<std::int64_t> IndexedDocuments::read(const Place& place) const {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(place.size));
  if (place.size > 0) index_.read(place.begin, place.size, tokens.data());
  return tokens;
}

}  // namespace capstan::cli
