#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/transport.hpp"
#include "core/errors.hpp"

namespace capstan {

struct WentOverTheNetwork {};

/// Texts that the threads of one process share; nothing travels over it.
class Texts final : public Transport {
 public:
  std::unique_ptr<Exchange> start(std::uint32_t, const std::vector<Message>&, const std::vector<Message>&) override {
    throw WentOverTheNetwork();
  }
  void publish(const std::string& key, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    texts_[key] = text;
    told_.notify_all();
  }
  std::string read(const std::string& key, std::chrono::milliseconds patience) override {
    std::unique_lock lock(mutex_);
    if (!told_.wait_for(lock, patience, [&] { return texts_.contains(key); })) throw RuntimeFault(key);
    return texts_.at(key);
  }
  std::shared_ptr<Transport> duplicate_for_thread(const std::string& purpose) override {
    const std::lock_guard lock(mutex_);
    auto& duplicate = duplicates_[purpose];
    if (!duplicate) duplicate = std::make_shared<Texts>();
    return duplicate;
  }
  std::shared_ptr<Transport> for_thread() override { return nullptr; }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::shared_ptr<Texts>> duplicates_;
};

}  // namespace capstan
