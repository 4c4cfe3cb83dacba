#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace capstan {

/// Keeps this rank's parts of parameters outside memory: on a disk, in host memory, on another host.
///
/// Parameters are counted as ParameterSource::Request counts them: the trained ones first, then the frozen ones. Reads
/// are started by the threads that run operators and waited for by the thread that talks to the ranks, so that calls
/// may come from several threads at once; a wait must not keep others from starting a read.
class PartStore {
 public:
  virtual ~PartStore() = default;
  using Ticket = std::uint64_t;

  /// Starts to fill `to` (one dimension, contiguous, of the compute type, the size of the part) with this rank's part
  /// of the parameter: what the last write() that had returned gave, or the last update. When it throws, nothing will
  /// be filled.
  virtual Ticket read(std::size_t parameter, const at::Tensor& to) = 0;
  /// Returns when that read is done; called once a ticket. Throws RuntimeFault where the values will never be there:
  /// nothing writes to them any more.
  virtual void wait(Ticket ticket) = 0;
  /// Makes these values (as those of read()) the part; returns when `part` may change. Throws RuntimeFault.
  virtual void write(std::size_t parameter, const at::Tensor& part) = 0;
};

}  // namespace capstan
