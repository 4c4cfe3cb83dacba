#include "sdk/conformance/rank_group.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "core/registry/plugin_call.hpp"
#include "sdk/conformance/case.hpp"
#include "sdk/conformance/component_under_test.hpp"

namespace capstan::conformance {
namespace {

/// Thrown to a rank that another one has let down.
class LetDown : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

at::Tensor& tensor(capstan_tensor handle) { return *reinterpret_cast<at::Tensor*>(handle); }

at::Tensor part(const at::Tensor& whole, std::int64_t index, std::int64_t count) {
  const std::int64_t share = whole.numel() / count;
  return whole.view({-1}).narrow(0, index * share, share);
}

template <class Body>
capstan_status guarded_without_grad(capstan_error* error, Body&& body) noexcept {
  return guarded(error, [&] {
    const at::NoGradGuard no_grad;
    body();
  });
}

RankGroup::Seat& seat_of(void* ctx) { return *static_cast<RankGroup::Seat*>(ctx); }

/// Among the members of its group.
std::int64_t index_of(const RankGroup::Seat& seat) {
  if (seat.members.empty()) return seat.rank;
  return std::find(seat.members.begin(), seat.members.end(), seat.rank) - seat.members.begin();
}

}  // namespace

void RankGroup::run(const std::function<void(std::uint32_t rank)>& body) {
  std::vector<std::exception_ptr> thrown(size_);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
        meet({this, rank}, {"nothing more"}, [](const std::vector<Call>&) {});
      } catch (const std::exception& error) {
        thrown[rank] = std::current_exception();
        leave_all("rank " + std::to_string(rank) + " has failed: " + error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string let_down = broken_;
  for (const auto& error : thrown) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& failure) {
      if (std::string(failure.what()).find("has failed: ") == std::string::npos) throw;
    }
  }
  if (!let_down.empty()) throw Broken(let_down);
}

void RankGroup::leave_all(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (broken_.empty()) broken_ = why;
  changed_.notify_all();
}

void RankGroup::arrive(std::unique_lock<std::mutex>& lock) {
  if (!broken_.empty()) throw LetDown(broken_);
  if (++waiting_ == size_) {
    waiting_ = 0;
    ++meetings_;
    changed_.notify_all();
    return;
  }
  const std::uint64_t meeting = meetings_;
  changed_.wait(lock, [&] { return meetings_ != meeting || !broken_.empty(); });
  if (meetings_ == meeting) throw LetDown(broken_);
}

void RankGroup::meet(const Seat& seat, Call call, const std::function<void(const std::vector<Call>&)>& copy) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool everyone = seat.members.empty();
  if (!everyone) call.name += " in groups";
  if (call.in != nullptr && everyone) {
    call.name += " of " + std::to_string(tensor(call.in).numel()) + " " + c10::toString(tensor(call.in).scalar_type());
  }
  calls_[seat.rank] = std::move(call);
  arrive(lock);
  for (std::uint32_t other = 0; other < size_; ++other) {
    if (calls_[other].name == calls_[0].name) continue;
    throw LetDown("rank 0 calls " + calls_[0].name + ", rank " + std::to_string(other) + " " + calls_[other].name +
                  ".");
  }
  std::vector<Call> of_members;
  for (const std::uint32_t member : seat.members) of_members.push_back(calls_[member]);
  copy(everyone ? calls_ : of_members);
  arrive(lock);
}

/// The functions of a host whose `ctx` is a Seat.
struct RankGroup::Collectives {
  static capstan_status split(void* ctx, std::uint32_t color, const capstan_host** out, capstan_error* error) {
    return guarded_without_grad(error, [&] {
      Seat& own = seat_of(ctx);
      std::vector<std::uint32_t> colors, members;
      own.group->meet(own, {"split", nullptr, nullptr, color}, [&](const std::vector<Call>& calls) {
        for (const Call& call : calls) colors.push_back(call.color);
      });
      for (std::uint32_t i = 0; i < colors.size(); ++i) {
        if (colors[i] == color) members.push_back(own.members.empty() ? i : own.members[i]);
      }
      std::shared_ptr<GroupSeat>& group = own.groups[colors];
      if (!group) {
        group = std::make_shared<GroupSeat>(GroupSeat{{own.group, own.rank, members}, make_test_host()});
        lend(group->host, group->seat);
      }
      *out = &group->host;
    });
  }

  static capstan_status all_reduce_sum(void* ctx, capstan_tensor values, capstan_error* error) {
    return guarded_without_grad(error, [&] {
      const Seat& own = seat_of(ctx);
      at::Tensor sum;
      own.group->meet(own, {"all_reduce_sum", values}, [&](const std::vector<Call>& calls) {
        sum = tensor(calls[0].in).clone();
        for (std::size_t i = 1; i < calls.size(); ++i) sum.add_(tensor(calls[i].in));
      });
      tensor(values).copy_(sum);
    });
  }

  static capstan_status all_to_all(void* ctx, capstan_tensor out, capstan_tensor in, capstan_error* error) {
    return guarded_without_grad(error, [&] {
      const Seat& own = seat_of(ctx);
      own.group->meet(own, {"all_to_all", in, out}, [&](const std::vector<Call>& calls) {
        const auto size = static_cast<std::int64_t>(calls.size());
        for (std::int64_t from = 0; from < size; ++from) {
          part(tensor(out), from, size)
              .copy_(part(tensor(calls[static_cast<std::size_t>(from)].in), index_of(own), size));
        }
      });
    });
  }

  static capstan_status all_gather(void* ctx, capstan_tensor out, capstan_tensor in, capstan_error* error) {
    return guarded_without_grad(error, [&] {
      const Seat& own = seat_of(ctx);
      own.group->meet(own, {"all_gather", in, out}, [&](const std::vector<Call>& calls) {
        const auto size = static_cast<std::int64_t>(calls.size());
        for (std::int64_t from = 0; from < size; ++from) {
          part(tensor(out), from, size).copy_(tensor(calls[static_cast<std::size_t>(from)].in).view({-1}));
        }
      });
    });
  }

  static capstan_status broadcast(void* ctx, capstan_tensor values, std::uint32_t root, capstan_error* error) {
    return guarded_without_grad(error, [&] {
      const Seat& own = seat_of(ctx);
      at::Tensor sent;
      own.group->meet(own, {"broadcast from " + std::to_string(root), values},
                      [&](const std::vector<Call>& calls) { sent = tensor(calls.at(root).in).clone(); });
      tensor(values).copy_(sent);
    });
  }
};

void RankGroup::lend(capstan_host& host, Seat& seat) {
  host.ctx = &seat;
  host.rank = static_cast<std::uint32_t>(index_of(seat));
  host.world_size = seat.members.empty() ? seat.group->size_ : static_cast<std::uint32_t>(seat.members.size());
  host.split = Collectives::split;
  host.all_reduce_sum = Collectives::all_reduce_sum;
  host.all_to_all = Collectives::all_to_all;
  host.all_gather = Collectives::all_gather;
  host.broadcast = Collectives::broadcast;
}

}  // namespace capstan::conformance
