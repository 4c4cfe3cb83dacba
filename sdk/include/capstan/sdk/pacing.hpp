#pragma once

#include <cstdint>
#include <string_view>

#include "capstan/sdk/component.hpp"

/// Pacing: how difficult samples may be in a step, for curricula whose schedule_type is "custom".
///
///   class Stairs {
///    public:
///     Stairs(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     // Pure; `step` is 1 for the first.
///     std::int64_t difficulty(std::string_view metric, std::int64_t step) const;
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::pacing<Stairs, "Stairs">)
namespace capstan::sdk {

template <class T>
struct PacingCalls {
  static capstan_status difficulty(void* self, capstan_str metric, std::int64_t step, std::int64_t* out,
                                   capstan_error* error) {
    const auto& pacing = *static_cast<Instance<T>*>(self);
    return guarded(pacing.host, error, [&] { *out = pacing.object.difficulty(to_view(metric), step); });
  }
  static constexpr capstan_pacing kTable = {sizeof(capstan_pacing), &difficulty};
};

/// The descriptor of pacing class T.
template <class T, Literal Type>
inline constexpr capstan_component pacing = describe<T, "pacing", Type>(&PacingCalls<T>::kTable);

}  // namespace capstan::sdk
