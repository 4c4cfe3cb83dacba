#pragma once

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace capstan::test {

/// While it lives, this process may take so many bytes of memory of its own beside what it has (RLIMIT_DATA).
class DataLimit {
 public:
  explicit DataLimit(std::size_t more) {
    getrlimit(RLIMIT_DATA, &before_);
    std::ifstream status("/proc/self/status");
    std::string line;
    rlim_t taken = 0;
    while (std::getline(status, line)) {
      if (line.starts_with("VmData:")) taken = std::stoul(line.substr(7)) * 1024;
    }
    const rlimit now{taken + more, before_.rlim_max};
    setrlimit(RLIMIT_DATA, &now);
  }
  ~DataLimit() { setrlimit(RLIMIT_DATA, &before_); }
  DataLimit(const DataLimit&) = delete;
  DataLimit& operator=(const DataLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace capstan::test
