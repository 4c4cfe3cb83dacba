#include "tests/plugins/meeting.hpp"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstring>
#include <exception>
#include <thread>

namespace capstan::testing {
namespace {

struct Bytes {
  char* data;
  std::size_t size;
};

Bytes bytes_of(capstan_tensor tensor) {
  void* data = nullptr;
  std::int64_t count = 0;
  std::int32_t dtype = 0;
  aoti_torch_get_data_ptr(tensor, &data);
  aoti_torch_get_numel(tensor, &count);
  aoti_torch_get_dtype(tensor, &dtype);
  const std::size_t size = dtype == aoti_torch_dtype_uint8()                                          ? 1
                           : dtype == aoti_torch_dtype_float64() || dtype == aoti_torch_dtype_int64() ? 8
                                                                                                      : 4;
  return {static_cast<char*>(data), static_cast<std::size_t>(count) * size};
}

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
  const Bytes own = bytes_of(values);
  std::vector<float> sum(own.size / sizeof(float), 0.0f);
  for (const capstan_tensor tensor : tensors_) {
    const auto* part = reinterpret_cast<const float*>(bytes_of(tensor).data);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  sent_[rank]["all_reduce_sum"] += 2 * own.size * (size() - 1) / size();
  barrier_.arrive_and_wait();
  std::memcpy(own.data, sum.data(), own.size);
  barrier_.arrive_and_wait();
}

void Meeting::all_to_all(std::uint32_t rank, capstan_tensor out, capstan_tensor in) {
  post(rank, in);
  const Bytes to = bytes_of(out);
  const std::size_t part = to.size / size();
  for (std::uint32_t from = 0; from < size(); ++from) {
    std::memcpy(to.data + from * part, bytes_of(tensors_[from]).data + rank * part, part);
  }
  sent_[rank]["all_to_all"] += part * (size() - 1);
  barrier_.arrive_and_wait();
}

void Meeting::all_gather(std::uint32_t rank, capstan_tensor out, capstan_tensor in) {
  post(rank, in);
  const std::size_t part = bytes_of(in).size;
  for (std::uint32_t from = 0; from < size(); ++from) {
    std::memcpy(bytes_of(out).data + from * part, bytes_of(tensors_[from]).data, part);
  }
  sent_[rank]["all_gather"] += part * (size() - 1);
  barrier_.arrive_and_wait();
}

void Meeting::broadcast(std::uint32_t rank, capstan_tensor values, std::uint32_t root) {
  post(rank, values);
  if (rank != root) std::memcpy(bytes_of(values).data, bytes_of(tensors_[root]).data, bytes_of(values).size);
  barrier_.arrive_and_wait();
}

}  // namespace capstan::testing
