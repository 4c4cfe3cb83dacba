#pragma once

namespace gloo::transport {
class Device;

// Held by unique_ptr in classes that are never destroyed from here.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace gloo::transport
