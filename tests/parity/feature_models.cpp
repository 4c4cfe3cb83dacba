#include "tests/parity/feature_models.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <vector>

#include "core/memory/tensor_handle.hpp"
#include "tests/support/hash_uniform.hpp"

namespace capstan::parity {
at::Tensor formula_values(const std::string& name, at::IntArrayRef shape, std::uint64_t seed, double bound) {
  at::Tensor values = at::empty(shape, at::kFloat);
  const std::vector<float> uniform = testing::hash_uniform(name, static_cast<std::size_t>(values.numel()), seed);
  auto* out = values.mutable_data_ptr<float>();
  for (const float value : uniform) *out++ = value * static_cast<float>(bound);
  return values;
}

namespace {

constexpr std::int64_t kImage = 16, kClasses = 10, kWindow = 256;

/// Parameters, buffers and modules by name, as the engine visits them.
class FeatureModel {
 public:
  virtual ~FeatureModel() = default;
  virtual at::Tensor loss(Batch& batch) = 0;

  static const capstan_model& table();

 protected:
  void add(const std::string& name, at::Tensor values) {
    by_name_[name] = values.requires_grad_(true);
    parameters_.push_back({name, values});
  }
  void add_module(const std::string& path, const char* class_name) { modules_.push_back({path, class_name}); }
  void add_buffer(const std::string& name, at::Tensor values) {
    by_name_[name] = values;
    buffers_.push_back({name, values});
  }
  const at::Tensor& at(const std::string& name) const { return by_name_.at(name); }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, at(name + ".weight"), at(name + ".bias"));
  }

  bool training_ = true;

 private:
  std::vector<NamedTensor> parameters_, buffers_;
  std::vector<ModuleRecord> modules_;
  std::map<std::string, at::Tensor> by_name_;
};

const capstan_model& FeatureModel::table() {
  static const capstan_model instance = [] {
    capstan_model table{};
    table.struct_size = sizeof table;
    table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
      const auto& model = *static_cast<FeatureModel*>(self);
      for (const ModuleRecord& module : model.modules_) {
        visitor->module(visitor->ctx, as_str(module.path), as_str(module.class_name));
      }
      for (const NamedTensor& one : model.parameters_) {
        visitor->tensor(visitor->ctx, as_str(one.name), handle_of(one.tensor), CAPSTAN_ROLE_PARAMETER);
      }
      for (const NamedTensor& one : model.buffers_) {
        visitor->tensor(visitor->ctx, as_str(one.name), handle_of(one.tensor), CAPSTAN_ROLE_BUFFER);
      }
      return CAPSTAN_OK;
    };
    table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error* error) {
      return guarded(error, [&] {
        *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(static_cast<FeatureModel*>(self)->loss(*batch)));
      });
    };
    table.training = [](void* self, int on, capstan_error*) {
      static_cast<FeatureModel*>(self)->training_ = on != 0;
      return CAPSTAN_OK;
    };
    return table;
  }();
  return instance;
}

class GptSplit final : public FeatureModel {
 public:
  explicit GptSplit(const Json& args)
      : layers_(args.at("layers").as_integer()),
        d_(args.at("d").as_integer()),
        heads_(args.at("heads").as_integer()),
        by_hand_(args.find("math_attention") && args.at("math_attention").as_bool()),
        seed_(static_cast<std::uint64_t>(args.at("seed").as_integer())) {
    add_module("", "GptSplit");
    add_weight("tok_emb", "torch::nn::EmbeddingImpl", {args.at("vocab").as_integer(), d_});
    add_weight("pos_emb", "torch::nn::EmbeddingImpl", {args.at("seq").as_integer(), d_});
    for (std::int64_t i = 0; i < layers_; ++i) {
      const std::string block = "blocks." + std::to_string(i);
      add_norm(block + ".ln1");
      for (const char* name : {".attn.q", ".attn.k", ".attn.v", ".attn.proj"}) add_linear(block + name, d_, d_);
      add_norm(block + ".ln2");
      add_linear(block + ".mlp.fc", 4 * d_, d_);
      add_linear(block + ".mlp.proj", d_, 4 * d_);
    }
    add_norm("ln_f");
    add_weight("head", "torch::nn::LinearImpl", {args.at("vocab").as_integer(), d_});
  }

  at::Tensor loss(Batch& batch) override {
    const at::Tensor ids = batch.tensors.at("input_ids"), labels = batch.tensors.at("labels");
    at::Tensor hidden = at::embedding(at("tok_emb.weight"), ids) + at("pos_emb.weight").narrow(0, 0, ids.size(1));
    for (std::int64_t i = 0; i < layers_; ++i) {
      const std::string block = "blocks." + std::to_string(i);
      hidden = hidden + attention(block + ".attn", norm(block + ".ln1", hidden));
      const at::Tensor wide = at::gelu(linear(block + ".mlp.fc", norm(block + ".ln2", hidden)), "tanh");
      hidden = hidden + linear(block + ".mlp.proj", wide);
    }
    const at::Tensor logits = at::linear(norm("ln_f", hidden), at("head.weight")).to(at::kFloat);
    return at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
  }

 private:
  void add_weight(const std::string& name, const char* class_name, std::vector<std::int64_t> shape) {
    const double factor = name.ends_with("proj") ? std::sqrt(2.0 * static_cast<double>(layers_)) : 1;
    add_module(name, class_name);
    add(name + ".weight", formula_values(name + ".weight", shape, seed_, 0.04 / factor));
  }
  void add_linear(const std::string& name, std::int64_t out, std::int64_t in) {
    add_weight(name, "torch::nn::LinearImpl", {out, in});
    add(name + ".bias", at::zeros({out}));
  }
  void add_norm(const std::string& name) {
    add_module(name, "torch::nn::LayerNormImpl");
    add(name + ".weight", at::ones({d_}));
    add(name + ".bias", at::zeros({d_}));
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    return at::layer_norm(x, {d_}, at(name + ".weight"), at(name + ".bias"), 1e-5);
  }
  at::Tensor attention(const std::string& name, const at::Tensor& x) const {
    const auto heads = [&](const char* part) {
      return linear(name + part, x).view({x.size(0), x.size(1), heads_, d_ / heads_}).transpose(1, 2);
    };
    const at::Tensor mixed =
        by_hand_ ? attention_by_hand(heads(".q"), heads(".k"), heads(".v"))
                 : at::scaled_dot_product_attention(heads(".q"), heads(".k"), heads(".v"), {}, 0.0, /*is_causal=*/true);
    return linear(name + ".proj", mixed.transpose(1, 2).reshape(x.sizes()));
  }
  static at::Tensor attention_by_hand(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
    const at::Tensor later = at::ones({q.size(2), q.size(2)}, at::kBool).triu(1);
    return at::matmul(scores.masked_fill(later, -INFINITY).softmax(-1), v);
  }

  std::int64_t layers_, d_, heads_;
  bool by_hand_;
  std::uint64_t seed_;
};

class Conv final : public FeatureModel {
 public:
  Conv() {
    add_module("", "Conv");
    add_conv("conv1", 8, 1, true);
    add_norm("bn1", 8);
    add_conv("conv2", 16, 8, true);
    add_norm("bn2", 16);
    add_conv("conv3", 12, 16, false);
    add_module("fc", "torch::nn::LinearImpl");
    add("fc.weight", formula_values("fc.weight", {kClasses, 12}, 1, 0.3));
    add("fc.bias", at::zeros({kClasses}));
  }

  at::Tensor loss(Batch& batch) override {
    const at::Tensor first = at::conv2d(batch.tensors.at("x"), at("conv1.weight"), at("conv1.bias"), 1, 1);
    const at::Tensor second = at::conv2d(norm("bn1", first), at("conv2.weight"), at("conv2.bias"), 2, 1);
    const at::Tensor third = at::conv2d(norm("bn2", second), at("conv3.weight"), {}, 1, 1);
    return at::cross_entropy_loss(linear("fc", third.mean({2, 3})), batch.tensors.at("labels"));
  }

 private:
  void add_conv(const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    add_module(name, "torch::nn::Conv2dImpl");
    add(name + ".weight", formula_values(name + ".weight", {out, in, 3, 3}, 1, 0.3));
    if (bias) add(name + ".bias", at::zeros({out}));
  }
  void add_norm(const std::string& name, std::int64_t channels) {
    add_module(name, "torch::nn::BatchNorm2dImpl");
    add(name + ".weight", at::ones({channels}));
    add(name + ".bias", at::zeros({channels}));
    add_buffer(name + ".running_mean", at::zeros({channels}));
    add_buffer(name + ".running_var", at::ones({channels}));
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    return at::relu(at::batch_norm(x, at(name + ".weight"), at(name + ".bias"), at(name + ".running_mean"),
                                   at(name + ".running_var"), training_, 0.1, 1e-5, /*cudnn_enabled=*/false));
  }
};

}  // namespace

bool is_feature_model(const Json& recorded) {
  const Json* model = recorded.find("model");
  return model != nullptr && (*model == Json("gpt-split") || *model == Json("conv"));
}

Model feature_model(const Json& recorded) {
  FeatureModel* model = nullptr;
  if (recorded.at("model") == Json("conv")) {
    model = new Conv;
  } else {
    model = new GptSplit(recorded.at("args"));
  }
  return Model(
      &FeatureModel::table(), model, [](void* self) { delete static_cast<FeatureModel*>(self); },
      recorded.at("model").as_string());
}

Batch conv_batch(const std::string& corpus, std::int64_t first, std::int64_t rows) {
  const std::int64_t samples = (static_cast<std::int64_t>(corpus.size()) - 1) / kWindow;
  at::Tensor x = at::empty({rows, 1, kImage, kImage}), labels = at::empty({rows}, at::kLong);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t begin = (first + row) % samples * kWindow;
    const auto byte = [&](std::int64_t i) {
      return static_cast<unsigned char>(corpus[static_cast<std::size_t>(begin + i)]);
    };
    auto* pixels = x.mutable_data_ptr<float>() + row * kWindow;
    for (std::int64_t i = 0; i < kWindow; ++i) pixels[i] = static_cast<float>(byte(i)) / 255.0f - 0.5f;
    labels.mutable_data_ptr<std::int64_t>()[row] = byte(kWindow) % kClasses;
  }
  Batch batch;
  batch.tensors.emplace("x", x);
  batch.tensors.emplace("labels", labels);
  return batch;
}

}  // namespace capstan::parity
