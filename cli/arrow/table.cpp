#include "cli/arrow/table.hpp"

#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cli/arrow/json_values.hpp"

namespace capstan::cli {
namespace {

using arrow::Result;
using arrow::Status;

constexpr std::int64_t kBatchBytes = 16 << 20, kMostRows = 4096;
constexpr int kMostNamed = 20;

/// "\"body\" (string), \"id\" (int64)"
std::string named_columns(const arrow::Schema& schema) {
  std::string text;
  for (int i = 0; i < std::min(schema.num_fields(), kMostNamed); ++i) {
    const arrow::Field& field = *schema.field(i);
    text += (i > 0 ? ", \"" : "\"") + field.name() + "\" (" + field.type()->ToString() + ")";
  }
  const int more = schema.num_fields() - kMostNamed;
  return more > 0 ? text + " and " + std::to_string(more) + " more" : text;
}

/// The rows of a batch that fill kBatchBytes.
std::int64_t rows_of_batch(const parquet::FileMetaData& metadata) {
  std::int64_t bytes = 0;
  for (int i = 0; i < metadata.num_row_groups(); ++i) bytes += metadata.RowGroup(i)->total_byte_size();
  const std::int64_t row = std::max<std::int64_t>(bytes / std::max<std::int64_t>(metadata.num_rows(), 1), 1);
  return std::clamp<std::int64_t>(kBatchBytes / row, 1, kMostRows);
}

/// The leaves of the columns at `places`.
std::vector<int> leaves_of(const std::vector<int>& places, const parquet::SchemaDescriptor& schema) {
  std::vector<int> leaves;
  for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
    const int place = schema.group_node()->FieldIndex(*schema.GetColumnRoot(leaf));
    if (std::find(places.begin(), places.end(), place) != places.end()) leaves.push_back(leaf);
  }
  return leaves;
}

/// Some bytes of a file.
Result<std::string> bytes_of(arrow::io::RandomAccessFile& file, std::int64_t begin, std::int64_t count) {
  ARROW_ASSIGN_OR_RAISE(const auto bytes, file.ReadAt(begin, count));
  return bytes->ToString();
}

/// What the end of a Parquet file says of it, but for the arrow schema that the writer may have added. That schema
/// makes texts dictionaries again, and libarrow cannot read dictionaries within lists in parts.
Result<std::shared_ptr<parquet::FileMetaData>> metadata_of(arrow::io::RandomAccessFile& file, std::int64_t size,
                                                           const parquet::ReaderProperties& properties) {
  constexpr std::string_view kKey = "ARROW:schema", kNoKey = "-----:schema";
  constexpr std::int64_t kTail = 8;
  const Status cut = Status::Invalid("is damaged: it has ", size, " bytes, and does not end as a Parquet file does");
  if (size < 2 * kTail) return cut;
  ARROW_ASSIGN_OR_RAISE(const std::string tail, bytes_of(file, size - kTail, kTail));
  if (tail.substr(4) == "PARE") return Status::Invalid("is encrypted, which is not supported");
  std::uint32_t length = 0;
  std::memcpy(&length, tail.data(), sizeof length);
  if (tail.substr(4) != "PAR1" || length > size - kTail) return cut;
  ARROW_ASSIGN_OR_RAISE(std::string text, bytes_of(file, size - kTail - length, length));
  for (std::size_t at = 0; (at = text.find(kKey, at)) != std::string::npos;) text.replace(at, kKey.size(), kNoKey);
  return parquet::FileMetaData::Make(text.data(), std::int64_t{length}, properties);
}

Result<Table> open_ipc_file(const std::shared_ptr<arrow::io::ReadableFile>& file,
                            const arrow::ipc::IpcReadOptions& options, std::int64_t bytes) {
  ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchFileReader::Open(file, options));
  const auto done = std::make_shared<int>(0);
  const int batches = reader->num_record_batches();
  return Table{.next = [=]() -> Result<std::shared_ptr<arrow::RecordBatch>> {
                 if (*done == batches) return std::shared_ptr<arrow::RecordBatch>();
                 return reader->ReadRecordBatch((*done)++);
               },
               .position = [=] { return bytes * *done / std::max(batches, 1); }};
}

Result<Table> open_ipc_stream(const std::shared_ptr<arrow::io::ReadableFile>& file,
                              const arrow::ipc::IpcReadOptions& options) {
  ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchStreamReader::Open(file, options));
  return Table{.next = [=] { return reader->Next(); }, .position = [=] { return file->Tell().ValueOr(0); }};
}

Result<Table> open_parquet(const std::shared_ptr<arrow::io::ReadableFile>& file, std::int64_t bytes,
                           const std::vector<std::string>& columns) {
  parquet::ReaderProperties pages;
  pages.enable_buffered_stream();
  parquet::arrow::FileReaderBuilder builder;
  ARROW_ASSIGN_OR_RAISE(const auto metadata, metadata_of(*file, bytes, pages));
  ARROW_RETURN_NOT_OK(builder.Open(file, pages, metadata));
  parquet::ArrowReaderProperties rows(/*use_threads=*/false);
  rows.set_batch_size(rows_of_batch(*metadata));
  rows.set_pre_buffer(false);
  ARROW_ASSIGN_OR_RAISE(std::unique_ptr<parquet::arrow::FileReader> owned, builder.properties(rows)->Build());
  const std::shared_ptr<parquet::arrow::FileReader> reader = std::move(owned);
  std::shared_ptr<arrow::Schema> schema;
  ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
  ARROW_ASSIGN_OR_RAISE(const std::vector<int> places, places_of(columns, *schema));
  std::vector<int> groups(static_cast<std::size_t>(metadata->num_row_groups()));
  std::iota(groups.begin(), groups.end(), 0);
  ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::RecordBatchReader> batches,
                        reader->GetRecordBatchReader(groups, leaves_of(places, *metadata->schema())));
  const auto done = std::make_shared<std::int64_t>(0);
  const std::int64_t total = std::max<std::int64_t>(metadata->num_rows(), 1);
  return Table{.next = [=]() -> Result<std::shared_ptr<arrow::RecordBatch>> {
                 ARROW_ASSIGN_OR_RAISE(auto batch, batches->Next());
                 if (batch) *done += batch->num_rows();
                 (void)reader;  // the batches are read through it
                 return batch;
               },
               .position =
                   [=] {
                     return static_cast<std::int64_t>(static_cast<double>(bytes) * static_cast<double>(*done) /
                                                      static_cast<double>(total));
                   }};
}

Result<Table> open_ipc(const std::shared_ptr<arrow::io::ReadableFile>& file, std::int64_t bytes, bool has_footer,
                       const std::vector<std::string>& columns) {
  arrow::ipc::IpcReadOptions options;
  options.use_threads = false;
  std::shared_ptr<arrow::Schema> schema;
  if (has_footer) {
    ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchFileReader::Open(file, options));
    schema = reader->schema();
  } else {
    ARROW_RETURN_NOT_OK(file->Seek(0));
    ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchStreamReader::Open(file, options));
    schema = reader->schema();
    ARROW_RETURN_NOT_OK(file->Seek(0));
  }
  ARROW_ASSIGN_OR_RAISE(options.included_fields, places_of(columns, *schema));
  return has_footer ? open_ipc_file(file, options, bytes) : open_ipc_stream(file, options);
}

}  // namespace

Result<std::vector<int>> places_of(const std::vector<std::string>& columns, const arrow::Schema& schema) {
  std::vector<int> places;
  for (const std::string& name : columns) {
    const std::vector<int> found = schema.GetAllFieldIndices(name);
    if (found.empty()) continue;
    if (found.size() > 1) return Status::Invalid("has ", found.size(), " columns \"", name, "\"");
    const Status type = check_json_type(*schema.field(found[0])->type());
    if (!type.ok()) return Status::TypeError("column \"", name, "\" ", type.message());
    places.push_back(found[0]);
  }
  if (!places.empty()) return places;
  return Status::KeyError("has no column \"", columns.front(), "\". It has ", named_columns(schema),
                          ". Name one with --key");
}

Result<Table> open_table(const std::string& path, const std::vector<std::string>& columns) {
  ARROW_ASSIGN_OR_RAISE(const auto file, arrow::io::ReadableFile::Open(path));
  ARROW_ASSIGN_OR_RAISE(const std::int64_t bytes, file->GetSize());
  ARROW_ASSIGN_OR_RAISE(const std::string begin, bytes_of(*file, 0, 6));
  if (begin.starts_with("PAR1")) return open_parquet(file, bytes, columns);
  const bool has_footer = begin == "ARROW1";
  if (!has_footer && !begin.starts_with("\xFF\xFF\xFF\xFF")) {
    return Status::Invalid("is neither a Parquet file nor an arrow IPC file or stream");
  }
  return open_ipc(file, bytes, has_footer, columns);
}

}  // namespace capstan::cli
