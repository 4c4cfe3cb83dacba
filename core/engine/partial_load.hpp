#pragma once

namespace capstan {

/// While one lives, Engine::load_checkpoint() on its thread takes what the checkpoint and the model have in common:
/// parameters and buffers that one of them lacks are named in a warning, and stay as they are. A tensor of another
/// shape is refused as ever.
class PartialLoad {
 public:
  PartialLoad();
  ~PartialLoad();
  PartialLoad(const PartialLoad&) = delete;
  static bool on();

 private:
  bool before_;
};

}  // namespace capstan
