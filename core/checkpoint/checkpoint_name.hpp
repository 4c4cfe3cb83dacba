#pragma once

#include <string>

namespace capstan {

/// A checkpoint as the command line names it: DIR, DIR:TAG, or the folder of a tag, DIR/TAG.
struct CheckpointName {
  std::string dir;
  std::string tag;  // empty: the one that `latest` names

  /// A folder whose own name holds a colon is taken as it stands.
  static CheckpointName parse(const std::string& text);
};

}  // namespace capstan
