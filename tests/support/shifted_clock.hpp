#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace capstan {

/// Clocks of programs that a test starts, which it sets while they run. See shifted_clock.c.
class ShiftedClock {
 public:
  explicit ShiftedClock(std::filesystem::path file) : file_(std::move(file)) {
    const int descriptor = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void* page = descriptor >= 0 && ftruncate(descriptor, sizeof(Shifts)) == 0
                     ? mmap(nullptr, sizeof(Shifts), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
                     : MAP_FAILED;
    if (descriptor >= 0) close(descriptor);
    if (page == MAP_FAILED) throw std::runtime_error("no clock can be shared in " + file_.string());
    shifts_ = static_cast<Shifts*>(page);
  }
  ~ShiftedClock() { munmap(const_cast<Shifts*>(shifts_), sizeof(Shifts)); }
  ShiftedClock(const ShiftedClock&) = delete;

  /// Of a program whose clocks these are; `alone`: not those of the programs that it starts.
  std::vector<std::string> environment(bool alone = false) const {
    std::vector<std::string> variables = {"LD_PRELOAD=" CAPSTAN_TEST_SHIFTED_CLOCK,
                                          "CAPSTAN_TEST_CLOCK=" + file_.string()};
    if (alone) variables.emplace_back("CAPSTAN_TEST_CLOCK_ALONE=1");
    return variables;
  }
  /// Seconds that are added to what the system's clocks tell.
  void set_time_of_day(std::int64_t seconds) { shifts_->of_day = seconds; }
  void set_steady(std::int64_t seconds) { shifts_->steady = seconds; }

 private:
  struct Shifts {
    std::int64_t of_day, steady;
  };
  std::filesystem::path file_;
  volatile Shifts* shifts_ = nullptr;
};

}  // namespace capstan
