#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace capstan {

/// Where rank 0 listens, and a secret by which its store is told from any other that listens there.
struct PortEntry {
  int port = 0;
  std::string secret;
  bool operator==(const PortEntry&) const = default;
};

/// A secret that nobody can guess: 32 hexadecimal digits.
std::string random_secret();

/// A file in which rank 0 tells the other processes of this host where it listens. Only this user can read or write it.
/// It counts while the process that wrote it lives, because that process holds a lock on it: what a killed start has
/// left is not believed. Not thread-safe.
class PortFile {
 public:
  explicit PortFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// Removes what this object has written.
  ~PortFile();
  PortFile(const PortFile&) = delete;
  PortFile& operator=(const PortFile&) = delete;

  /// Rank 0 calls it: takes the place of what an earlier start has left. Throws RuntimeFault.
  void write(const PortEntry& entry);
  /// The other ranks call it: waits until rank 0 has written. Throws RuntimeFault after `patience`, once
  /// `given_up` is true, and at once when what lies there belongs to somebody else.
  PortEntry read(std::chrono::milliseconds patience, const std::function<bool()>& given_up = {}) const;

  /// What rank 0 has written, if it has. Throws RuntimeFault when what lies there belongs to somebody else.
  std::optional<PortEntry> peek() const;

 private:
  enum class Found { kNothing, kLeftover, kEntry };
  Found look(PortEntry& entry) const;
  [[noreturn]] void fail(const std::string& problem) const;

  std::filesystem::path path_;
  int written_ = -1;  // the file, open and locked
};

}  // namespace capstan
