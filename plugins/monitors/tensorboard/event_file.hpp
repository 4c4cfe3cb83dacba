#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "../common/append_file.hpp"

namespace capstan::monitors {

/// CRC-32C (Castagnoli) of the bytes.
std::uint32_t crc32c(std::string_view bytes);

/// The checksum as TFRecord files hold it, rotated and offset, so that checksums of data that holds checksums stay
/// good.
std::uint32_t masked_crc32c(std::string_view bytes);

/// One TFRecord: length, its checksum, the bytes, their checksum.
std::string record(std::string_view payload);

/// A new event file of TensorBoard, in a folder that is made when missing. TensorBoard finds it by its name,
/// events.out.tfevents.<seconds>.<host>.<process>.<n>, which no other run has.
class EventFile {
 public:
  /// Throws std::runtime_error naming the file.
  EventFile(const std::filesystem::path& folder, double wall_time);

  /// Appends one serialised Event to what the next flush() writes.
  void add(std::string_view event);
  /// Hands all that was added to the operating system, in one write. Throws std::runtime_error naming the file.
  void flush();

 private:
  AppendFile file_;
  std::string pending_;
};

}  // namespace capstan::monitors
