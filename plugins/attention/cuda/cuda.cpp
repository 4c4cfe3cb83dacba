// What computes attention over the blocks that a layout sets, on a CUDA device.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "capstan/sdk/attention_kernel.hpp"
#include "plugins/attention/cuda/block_lists.hpp"
#include "plugins/attention/cuda/kernels.hpp"

namespace {

namespace sdk = capstan::sdk;
using capstan::attention::BlockIndex;
using capstan::attention::BlockLists;
using capstan::attention::DeviceCall;
using capstan::attention::DeviceDtype;
using capstan::attention::DeviceRows;

DeviceRows device_rows(const sdk::Rows& rows) {
  const DeviceDtype dtype = rows.dtype == sdk::Dtype::kBFloat16  ? DeviceDtype::kBFloat16
                            : rows.dtype == sdk::Dtype::kFloat16 ? DeviceDtype::kFloat16
                                                                 : DeviceDtype::kFloat32;
  return {rows.data, dtype, static_cast<int>(rows.width), rows.batch_stride, rows.head_stride, rows.token_stride};
}

void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw sdk::Error(std::string(what) + ": " + cudaGetErrorString(status));
}
void must_launch(const char* error) {
  if (error != nullptr) throw sdk::Error(std::string("the kernel did not start: ") + error);
}

/// A list in device memory.
class DeviceList {
 public:
  explicit DeviceList(const std::vector<int>& values) {
    const std::size_t bytes = (values.empty() ? 1 : values.size()) * sizeof(int);
    must(cudaMalloc(&data_, bytes), "memory for a layout");
    if (!values.empty()) must(cudaMemcpy(data_, values.data(), bytes, cudaMemcpyHostToDevice), "copying a layout");
  }
  ~DeviceList() { cudaFree(data_); }
  DeviceList(const DeviceList&) = delete;
  const int* data() const { return static_cast<const int*>(data_); }

 private:
  void* data_ = nullptr;
};

class BlockSparse {
 public:
  struct Plan {
    Plan(const sdk::AttentionLayout& layout, const BlockLists& lists)
        : column_starts(lists.column_starts), columns(lists.columns), row_starts(lists.row_starts), rows(lists.rows) {
      index.block = static_cast<int>(layout.block);
      index.blocks = static_cast<int>(layout.blocks);
      index.causal = layout.causal;
      index.column_starts = column_starts.data();
      index.columns = columns.data();
      index.row_starts = row_starts.data();
      index.rows = rows.data();
    }
    DeviceList column_starts, columns, row_starts, rows;
    BlockIndex index;
  };

  BlockSparse(sdk::Host host, const sdk::Params&) : host_(host) {}

  std::unique_ptr<Plan> prepare(const sdk::AttentionLayout& layout) const {
    return std::make_unique<Plan>(layout, capstan::attention::lists_of(layout));
  }
  void forward(const Plan& plan, const sdk::AttentionCall& call, const sdk::Rows& out, float* log_sum_exp) const {
    must_launch(
        capstan::attention::launch_forward(device_call(plan, call), device_rows(out), log_sum_exp, host_.stream()));
  }
  void backward(const Plan& plan, const sdk::AttentionCall& call, const sdk::AttentionGradients& gradients) const {
    const capstan::attention::DeviceGradients to{device_rows(gradients.out),  gradients.log_sum_exp,
                                                 device_rows(gradients.grad), device_rows(gradients.q),
                                                 device_rows(gradients.k),    device_rows(gradients.v)};
    must_launch(capstan::attention::launch_backward(device_call(plan, call), to, host_.stream()));
  }

 private:
  static DeviceCall device_call(const Plan& plan, const sdk::AttentionCall& call) {
    constexpr std::int64_t kMostGrid = 65535;
    if (std::max(call.q.width, call.v.width) > capstan::attention::kMostWidth) {
      throw sdk::Error("heads of " + std::to_string(std::max(call.q.width, call.v.width)) + " elements are above the " +
                       std::to_string(capstan::attention::kMostWidth) + " that are made for.");
    }
    if (call.terms.size() > capstan::attention::kMostTerms || call.q.heads > kMostGrid || call.q.batch > kMostGrid) {
      throw sdk::Error("a call of so many heads, samples or masks is not made for.");
    }
    DeviceCall to{};
    to.q = device_rows(call.q);
    to.k = device_rows(call.k);
    to.v = device_rows(call.v);
    to.batch = static_cast<int>(call.q.batch);
    to.heads = static_cast<int>(call.q.heads);
    to.tokens = static_cast<int>(call.q.tokens);
    to.width = static_cast<int>(call.q.width);
    to.value_width = static_cast<int>(call.v.width);
    to.scale = static_cast<float>(call.scale);
    to.index = plan.index;
    for (const sdk::AttentionTerm& term : call.terms) {
      to.terms[to.term_count++] = {term.mask,         term.values,     term.batch_stride, term.head_stride,
                                   term.query_stride, term.key_stride, term.grad};
    }
    return to;
  }

  sdk::Host host_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::attention_kernel<BlockSparse, "block_sparse">)
