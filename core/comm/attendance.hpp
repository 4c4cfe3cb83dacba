#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace capstan {

/// How far each process has come in the start of a run: a text of each that all of them can read. One thread uses it.
class Attendance {
 public:
  /// The texts that the processes share. Both throw where whoever keeps them is gone.
  struct Board {
    std::function<void(const std::string& key, const std::string& text)> tell;
    std::function<std::optional<std::string>(const std::string& key)> look;  // does not wait
  };

  Attendance(Board board, int rank, int size);

  static std::string key_of(int rank);

  void arrived();
  void connected();
  void stopped(const std::string& why) noexcept;
  /// Throws RuntimeFault where a process has stopped.
  void check() const;

  /// "\n  rank 0  has arrived\n  rank 1  has not appeared".
  std::string table();
  /// The same table for a start whose processes have all arrived and cannot connect: the processes that still run say
  /// so within `patience`, so that the others stand out.
  std::string table_of_answers(std::chrono::milliseconds patience);

 private:
  std::vector<std::optional<std::string>> look() const;

  Board board_;
  int rank_, size_;
};

}  // namespace capstan
