#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

namespace capstan {

/// Copies from a device to host memory through two halves of pinned memory that it keeps: while the host empties one
/// half, the device fills the other. Many small tensors cost one wait together, and a large one costs no second copy in
/// pinned memory. Not thread-safe.
class PinnedCopies {
 public:
  /// The first copy takes the halves. Where the system refuses pinned memory, the first copy logs a warning, and
  /// LibTorch copies each tensor by itself.
  explicit PinnedCopies(at::Device device, std::int64_t half_bytes = std::int64_t{32} << 20)
      : device_(device), half_bytes_(half_bytes) {}

  /// Contiguous copies of tensors of the device, with the values that they have where the calling thread's current
  /// stream has come to its present end.
  std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors);

 private:
  struct Arrival {
    at::Tensor from, to;  // flat: a part of a half, a part of a copy
  };
  struct Half {
    at::Tensor bytes;
    std::int64_t used = 0;
    std::vector<Arrival> arrivals;
    std::optional<c10::Event> filled;
  };

  bool has_halves();
  void copy(const at::Tensor& from, const at::Tensor& to);
  /// Marks the end of what the device puts into the current half, and makes the other one the current half.
  void turn();
  /// Waits until the device has filled a half, and empties it.
  static void empty(Half& half);

  at::Device device_;
  std::int64_t half_bytes_;
  std::vector<Half> halves_;
  std::size_t current_ = 0;
  bool refused_ = false;
};

}  // namespace capstan
