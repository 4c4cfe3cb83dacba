#pragma once

namespace capstan {

/// How much of a checkpoint an engine takes. Parameters and buffers, the counters and the loss scale always go over.
struct LoadOptions {
  bool strict = true;            // else the checkpoint and the model may each lack parameters and buffers of the other
  bool optimizer_states = true;  // else states begin as those of a new run, with the configuration's numbers
  bool schedule = true;          // else the schedule stays where it stands: that of a new engine is at its start
};

}  // namespace capstan
