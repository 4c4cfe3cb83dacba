#pragma once

#include <string>

namespace capstan::cli {

/// The elastic launches of this user on this host as a text for people: who trains, how far they are, what was lost.
std::string elastic_status();

}  // namespace capstan::cli
