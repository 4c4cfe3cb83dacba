#include "core/model/decoding.hpp"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

using ::testing::ThrowsMessage;

/// A model's side of decoding, as a plugin in C writes it.
struct Fake {
  at::Tensor logits = at::zeros({2, 7});
  std::string error;  // of decode; empty: none
  int begun = 0, ended = 0;
  std::int64_t capacity = 0;
  bool training = true;
};

capstan_status visit(void*, const capstan_visitor*, capstan_error*) { return CAPSTAN_OK; }
capstan_status set_training(void* self, int on, capstan_error*) {
  static_cast<Fake*>(self)->training = on != 0;
  return CAPSTAN_OK;
}
capstan_status begin(void* self, std::size_t, std::int64_t capacity, void** cache, capstan_error*) {
  auto& fake = *static_cast<Fake*>(self);
  ++fake.begun;
  fake.capacity = capacity;
  *cache = self;
  return CAPSTAN_OK;
}
capstan_status decode(void* self, void*, capstan_tensor, capstan_tensor* logits, capstan_error* error) {
  auto& fake = *static_cast<Fake*>(self);
  if (!fake.error.empty()) {
    error->text = fake.error;
    return CAPSTAN_FAILED;
  }
  *logits = reinterpret_cast<capstan_tensor>(new at::Tensor(fake.logits));
  return CAPSTAN_OK;
}
void end(void*, void* cache) { ++static_cast<Fake*>(cache)->ended; }

constexpr capstan_model kContinuing = {
    sizeof(capstan_model), &visit, nullptr, &set_training, nullptr, nullptr, nullptr, &begin, &decode, &end};
constexpr capstan_model kOther = {sizeof(capstan_model), &visit, nullptr, &set_training};

Model model_of(Fake& fake, const capstan_model* functions = &kContinuing) {
  return Model(
      functions, &fake, [](void*) {}, "fake");
}

TEST(Decoding, FreesTheCacheThatTheModelMadeOfItsTokens) {
  Fake fake;
  const Model model = model_of(fake);
  {
    Decoding decoding(model.decode_functions(), 2, 9);
    EXPECT_TRUE(decoding.logits(at::zeros({2, 3}, at::kLong)).is_same(fake.logits));
    EXPECT_EQ(fake.ended, 0);
  }
  EXPECT_EQ(fake.begun, 1);
  EXPECT_EQ(fake.ended, 1);
  EXPECT_EQ(fake.capacity, 9);
  EXPECT_FALSE(fake.training);
}

TEST(Decoding, RefusesLogitsOfAnotherFormAndPassesOnTheModelsText) {
  Fake fake;
  const Model model = model_of(fake);
  Decoding decoding(model.decode_functions(), 2, 9);
  const auto decode_once = [&] { decoding.logits(at::zeros({2, 3}, at::kLong)); };

  fake.logits = at::zeros({2, 3, 7});
  EXPECT_THAT(decode_once, ThrowsMessage<PluginError>("model 'fake', decode: must give floating-point logits of shape "
                                                      "[2, vocab_size], got [2, 3, 7]."));
  fake.logits = at::Tensor();
  EXPECT_THAT(decode_once, ThrowsMessage<PluginError>("model 'fake', decode: must give floating-point logits of shape "
                                                      "[2, vocab_size], got no tensor."));
  fake.logits = at::zeros({2, 7});
  EXPECT_THAT(
      [&] {
        decoding.logits_of_rows(at::zeros({2, 3}, at::kLong), 1);
      },
      ThrowsMessage<PluginError>("model 'fake', decode: must give floating-point logits of shape [1, "
                                 "vocab_size], got [2, 7]."));
  fake.error = "has no room.";
  EXPECT_THAT(decode_once, ThrowsMessage<PluginError>("model 'fake', decode: has no room."));
}

TEST(Decoding, TakesRowsOfDifferentLengthsWhereTheModelSaysSo) {
  Fake fake;
  EXPECT_FALSE(Decoding::takes_short_rows(model_of(fake)));
}

TEST(Decoding, NeedsAModelThatContinuesTexts) {
  Fake fake;
  const Model model = model_of(fake, &kOther);
  EXPECT_THAT(
      [&] { model.decode_functions(); },
      ThrowsMessage<ConfigError>("capstan.model: model 'fake' cannot continue a text: it has no function decode. "
                                 "Use a model that has one, or give its module decode(ids, cache)."));
}

}  // namespace
}  // namespace capstan
