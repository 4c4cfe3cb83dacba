#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/pretrained/gguf_header.hpp"

namespace capstan {

/// The files behind the first one of a model in parts, NAME-00001-of-00003.gguf, as llama-gguf-split writes them; empty
/// for a model in one file. Throws RuntimeFault where `file` is not the first part, or named otherwise.
std::vector<std::filesystem::path> further_gguf_parts(const GgufHeader& first, const std::filesystem::path& file);

/// Puts the tensors of a further part into the header of the first. Throws RuntimeFault that begins with `where` for a
/// file that is not that part of `count`, and for a tensor that an earlier part has.
void join_gguf_part(GgufHeader& first, GgufHeader part, std::size_t number, std::size_t count,
                    const std::string& where);

/// Throws RuntimeFault where the parts together lack tensors that the first one counts.
void check_gguf_parts(const GgufHeader& header, const std::string& where);

/// All files of a model, mapped by `Mapped`, and their header: the metadata of the first, and the tensors of all.
template <class Mapped>
struct GgufFiles {
  std::vector<std::shared_ptr<const Mapped>> files;
  GgufHeader header;

  /// Throws RuntimeFault, and what `Mapped` throws.
  explicit GgufFiles(const std::filesystem::path& file) : header(add(file)) {
    const std::vector<std::filesystem::path> further = further_gguf_parts(header, file);
    for (const std::filesystem::path& part : further) {
      GgufHeader more = add(part);
      join_gguf_part(header, std::move(more), files.size() - 1, further.size() + 1, quoted(part));
    }
    check_gguf_parts(header, quoted(file));
  }

  /// Where the bytes of each file begin.
  std::vector<const std::byte*> bytes() const {
    std::vector<const std::byte*> begins;
    for (const auto& file : files) begins.push_back(file->data());
    return begins;
  }

 private:
  static std::string quoted(const std::filesystem::path& file) { return "'" + file.string() + "'"; }
  GgufHeader add(const std::filesystem::path& file) {
    files.push_back(std::make_shared<const Mapped>(file.string()));
    return parse_gguf(files.back()->data(), files.back()->size(), quoted(file));
  }
};

}  // namespace capstan
