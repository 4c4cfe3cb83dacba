#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"
#include "cli/data/input_pieces.hpp"

namespace capstan::cli {

/// The format of a file by its name: .idx is indexed, row_format_of() for files of rows, .bin is what its header says,
/// or uint16; others are bytes. NAME of a pair NAME.idx and NAME.bin is indexed.
std::string format_of(const std::string& path);

/// The paths, with the files of each folder, and of those below it, in its place: by name, without hidden and empty
/// files, without NAME.bin, NAME.loss and NAME.rows where NAME.idx is beside it, and without records of tokens and
/// unfinished results; of a folder of the datasets library its data files. Throws RuntimeFault for a folder without
/// such files, and what files_of_datasets_folder() throws.
std::vector<std::string> with_files_of_folders(const std::vector<std::string>& paths);

/// Takes the tokens of documents, one document after another.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void append(std::span<const std::int64_t> tokens) = 0;
  virtual void end_document() = 0;
  /// Gives what was written its name. Without it nothing is left.
  virtual void finish() = 0;
};

/// What is known beside the format.
struct TokenOptions {
  std::string key = "text";        // rows: the member that holds the text
  std::int64_t end_token = -1;     // uint16, uint32, bytes: ends a document; -1: a file is one
  bool deepspeed_numbers = false;  // indexed: types are numbered as DeepSpeed does, not as Megatron
  std::function<void()> on_chunk;  // called now and then; may throw
  ByteRange range{};               // what begins there: tokens, lines, rows of a .bin that has passed check_index()
};

/// Hands the documents of a file to `sink`. Throws RuntimeFault naming the file and the place.
void read_tokens(const std::string& path, const std::string& format, const TokenOptions& options, TokenSink& sink);

/// The file of a format that holds the tokens: NAME.bin of an index, else the file itself.
std::string file_of_tokens(const std::string& path, const std::string& format);

/// Looks at every row of an index. Throws RuntimeFault naming the file and the row.
void check_index(const std::string& path);

/// Opens `out` to be written: NAME of NAME.idx and NAME.bin for "indexed", else the file. `type` of the tokens that
/// will come. A token that the format has no room for is a RuntimeFault of append(). Not "jsonl".
std::unique_ptr<TokenSink> make_sink(const std::string& out, const std::string& format, sdk::IndexedType type,
                                     const TokenOptions& options);

/// The type of a file's tokens in a format.
sdk::IndexedType type_of(const std::string& path, const std::string& format);

}  // namespace capstan::cli
