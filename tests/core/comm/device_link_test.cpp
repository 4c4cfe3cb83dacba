#include "core/comm/device_link.hpp"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "core/comm/both_exchanges.hpp"

namespace capstan {
namespace {

/// What was started where: "host tag 7: 1 sent, 2 received".
using Journal = std::vector<std::string>;

class Noted final : public Exchange {
 public:
  Noted(Journal& journal, std::string name, bool completes)
      : journal_(journal), name_(std::move(name)), completes_(completes) {}
  bool wait() override {
    journal_.push_back(name_ + " waited for");
    return completes_;
  }
  void abort() override { journal_.push_back(name_ + " aborted"); }

 private:
  Journal& journal_;
  std::string name_;
  bool completes_;
};

std::string counted(const std::vector<Message>& send, const std::vector<Message>& receive) {
  return std::to_string(send.size()) + " sent, " + std::to_string(receive.size()) + " received";
}

class HostTransport final : public Transport {
 public:
  explicit HostTransport(Journal& journal) : journal_(journal) {}
  std::unique_ptr<Exchange> start(std::uint32_t tag, const std::vector<Message>& send,
                                  const std::vector<Message>& receive) override {
    journal_.push_back("host tag " + std::to_string(tag) + ": " + counted(send, receive));
    return std::make_unique<Noted>(journal_, "host", true);
  }
  void publish(const std::string& key, const std::string& text) override { texts_[key] = text; }
  std::string read(const std::string& key, std::chrono::milliseconds) override { return texts_.at(key); }
  std::shared_ptr<Transport> duplicate_for_thread(const std::string&) override {
    return std::make_shared<HostTransport>(journal_);
  }
  std::shared_ptr<Transport> for_thread() override { return std::make_shared<HostTransport>(journal_); }

 private:
  Journal& journal_;
  std::map<std::string, std::string> texts_;
};

class TestLink final : public DeviceLink {
 public:
  TestLink(Journal& journal, bool completes) : journal_(journal), completes_(completes) {}
  std::unique_ptr<Exchange> start(const std::vector<Message>& send, const std::vector<Message>& receive) override {
    journal_.push_back("link: " + counted(send, receive));
    return std::make_unique<Noted>(journal_, "link", completes_);
  }

 private:
  Journal& journal_;
  bool completes_;
};

/// Tensors of another device than the host need no memory to be told apart.
Message elsewhere(int peer) { return {peer, at::empty({3}, at::TensorOptions(at::kMeta))}; }
Message on_host(int peer) { return {peer, at::empty({3}, at::kFloat)}; }

struct DeviceLinkTest : ::testing::Test {
  Journal journal;
  std::shared_ptr<Transport> linked(bool completes = true) {
    return with_device_link(std::make_shared<HostTransport>(journal), std::make_unique<TestLink>(journal, completes));
  }
};

TEST_F(DeviceLinkTest, CarriesTensorsByTheMemoryThatTheyAreIn) {
  const auto transport = linked();

  EXPECT_TRUE(transport->start(7, {on_host(1)}, {on_host(1), on_host(2)})->wait());
  EXPECT_TRUE(transport->start(8, {elsewhere(1), elsewhere(2)}, {elsewhere(1)})->wait());
  EXPECT_EQ(journal, (Journal{"host tag 7: 1 sent, 2 received", "host waited for", "link: 2 sent, 1 received",
                              "link waited for"}));
}

TEST_F(DeviceLinkTest, DividesAnExchangeOfBoth) {
  const auto exchange = linked()->start(9, {on_host(1), elsewhere(1)}, {elsewhere(1), elsewhere(2), on_host(2)});

  EXPECT_TRUE(exchange->wait());
  exchange->abort();
  EXPECT_EQ(journal, (Journal{"host tag 9: 1 sent, 1 received", "link: 1 sent, 2 received", "host waited for",
                              "link waited for", "host aborted", "link aborted"}));
}

TEST_F(DeviceLinkTest, SaysThatAnExchangeWasAbortedWhereverItWas) {
  EXPECT_FALSE(linked(false)->start(1, {on_host(1), elsewhere(1)}, {})->wait());
}

/// An exchange whose connection breaks.
class Broken final : public Exchange {
 public:
  bool wait() override { throw PeerLost(1, "the cable is cut"); }
  void abort() override {}
};

TEST(BothExchanges, EndsTheSecondWhereTheFirstFails) {
  Journal journal;
  BothExchanges thrown(std::make_unique<Broken>(), std::make_unique<Noted>(journal, "second", false));
  EXPECT_THROW(thrown.wait(), PeerLost);
  EXPECT_EQ(journal, (Journal{"second aborted", "second waited for"}));

  journal.clear();
  BothExchanges aborted(std::make_unique<Noted>(journal, "first", false),
                        std::make_unique<Noted>(journal, "second", false));
  EXPECT_FALSE(aborted.wait());
  EXPECT_EQ(journal, (Journal{"first waited for", "second aborted", "second waited for"}));
}

TEST_F(DeviceLinkTest, LeavesTextsToTheHost) {
  const auto transport = linked();
  transport->publish("key", "text");
  EXPECT_EQ(transport->read("key", std::chrono::milliseconds(1)), "text");
}

}  // namespace
}  // namespace capstan
