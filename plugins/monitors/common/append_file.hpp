#pragma once

#include <filesystem>
#include <string_view>

namespace capstan::monitors {

/// A file that stays open for appending. What append() was given is with the operating system when it returns.
class AppendFile {
 public:
  /// Creates it where missing, with `header` where empty. Throws std::runtime_error naming the file.
  AppendFile(std::filesystem::path file, std::string_view header);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;

  void append(std::string_view bytes);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Throws std::runtime_error "file: what the system says of `error`."
[[noreturn]] void fail_on(const std::filesystem::path& file, int error);

}  // namespace capstan::monitors
