#include "tests/plugins/meeting.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <exception>
#include <thread>

namespace capstan::testing {
namespace {

/// What is behind a handle, on whatever device.
at::Tensor flat(capstan_tensor handle) { return reinterpret_cast<const at::Tensor*>(handle)->view({-1}); }
at::Tensor bytes_of(capstan_tensor handle) { return flat(handle).view(at::kByte); }

template <class Body>
capstan_status guarded(capstan_error* error, Body&& body) {
  try {
    body();
    return CAPSTAN_OK;
  } catch (const std::exception& thrown) {
    error->text = thrown.what();
    return CAPSTAN_FAILED;
  }
}

Seat seat_of(void* ctx) { return static_cast<PluginHost*>(ctx)->seat(); }

void lend_collectives(capstan_host& table) {
  table.all_reduce_sum = [](void* ctx, capstan_tensor values, capstan_error* error) {
    return guarded(error, [&] { seat_of(ctx).meeting->all_reduce_sum(seat_of(ctx).rank, values); });
  };
  table.all_to_all = [](void* ctx, capstan_tensor out, capstan_tensor in, capstan_error* error) {
    return guarded(error, [&] { seat_of(ctx).meeting->all_to_all(seat_of(ctx).rank, out, in); });
  };
  table.all_gather = [](void* ctx, capstan_tensor out, capstan_tensor in, capstan_error* error) {
    return guarded(error, [&] { seat_of(ctx).meeting->all_gather(seat_of(ctx).rank, out, in); });
  };
  table.broadcast = [](void* ctx, capstan_tensor values, std::uint32_t root, capstan_error* error) {
    return guarded(error, [&] { seat_of(ctx).meeting->broadcast(seat_of(ctx).rank, values, root); });
  };
}

}  // namespace

void Meeting::run(const std::function<void(Seat)>& body) {
  std::vector<std::exception_ptr> thrown(size());
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body({this, rank, size(), &lend_collectives});
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
}

void Meeting::post(std::uint32_t rank, capstan_tensor values) {
  tensors_[rank] = values;
  barrier_.arrive_and_wait();
}

void Meeting::all_reduce_sum(std::uint32_t rank, capstan_tensor values) {
  post(rank, values);
  at::Tensor own = flat(values), sum = at::zeros_like(own);
  for (const capstan_tensor tensor : tensors_) sum.add_(flat(tensor));
  sent_[rank]["all_reduce_sum"] += 2 * own.nbytes() * (size() - 1) / size();
  barrier_.arrive_and_wait();
  own.copy_(sum);
  barrier_.arrive_and_wait();
}

void Meeting::all_to_all(std::uint32_t rank, capstan_tensor out, capstan_tensor in) {
  post(rank, in);
  const at::Tensor to = bytes_of(out);
  const std::int64_t part = to.numel() / size();
  for (std::uint32_t from = 0; from < size(); ++from) {
    to.narrow(0, from * part, part).copy_(bytes_of(tensors_[from]).narrow(0, rank * part, part));
  }
  sent_[rank]["all_to_all"] += static_cast<std::uint64_t>(part) * (size() - 1);
  barrier_.arrive_and_wait();
}

void Meeting::all_gather(std::uint32_t rank, capstan_tensor out, capstan_tensor in) {
  post(rank, in);
  const std::int64_t part = bytes_of(in).numel();
  for (std::uint32_t from = 0; from < size(); ++from) {
    bytes_of(out).narrow(0, from * part, part).copy_(bytes_of(tensors_[from]));
  }
  sent_[rank]["all_gather"] += static_cast<std::uint64_t>(part) * (size() - 1);
  barrier_.arrive_and_wait();
}

void Meeting::broadcast(std::uint32_t rank, capstan_tensor values, std::uint32_t root) {
  post(rank, values);
  if (rank != root) bytes_of(values).copy_(bytes_of(tensors_[root]));
  barrier_.arrive_and_wait();
}

}  // namespace capstan::testing
