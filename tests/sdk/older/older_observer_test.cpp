#include <gmock/gmock.h>

#include "core/components/observers.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/model/batch.hpp"
#include "core/registry/registry.hpp"

namespace capstan {
namespace {

const std::filesystem::path kPlugin = CAPSTAN_TEST_BUILD_DIR "/tests/sdk_plugins/libcapstan_observer_older_events.so";

class OlderObserver : public ::testing::Test {
 protected:
  Component create(const char* type) {
    return registry_.create("here", "observer", type, Json::object(), model_host());
  }

  Registry registry_{PluginIndex::of({read_plugin(kPlugin)})};
  Observers observers_;
};

TEST_F(OlderObserver, IsCalledForThePlacesThatItsTableHas) {
  observers_.add(create("older_events"));
  capstan_event event{};
  event.struct_size = sizeof event;
  event.kind = CAPSTAN_EVENT_STEP_BEGIN;
  observers_.emit(event);
  Batch batch;
  observers_.change_batch(batch);
  observers_.emit(event);

  EXPECT_TRUE(observers_.layers().empty());
  EXPECT_THAT(observers_.state_keys(), ::testing::IsEmpty());
  EXPECT_EQ(observers_.save(), Json::object());
  observers_.load(Json::parse(R"({"older_events": "text"})"));
  EXPECT_THROW(observers_.emit(event), PluginError);
}

TEST_F(OlderObserver, IsRefusedForAPlaceThatItsTableLacks) {
  EXPECT_THAT(
      [&] { observers_.add(create("older_layers")); },
      ::testing::ThrowsMessage<PluginError>(
          "observer 'older_layers': its manifest attaches to 'layers', but it has no function for that. Implement "
          "it, or take it out of `attach`."));
}

}  // namespace
}  // namespace capstan
