#include "gpt.hpp"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <map>
#include <optional>

#include "../by_rows.hpp"
#include "../tokens.hpp"
#include "capstan/few_rows_linear.hpp"
#include "capstan/linear_cross_entropy.hpp"
#include "init.hpp"

namespace capstan::models {
namespace {

const std::map<std::string, GptShape, std::less<>> kSizes = {
    {"tiny", {4, 128, 4, 128, 256, false}},     {"mini", {6, 192, 6, 256, 256, false}},
    {"small", {6, 384, 6, 256, 256, false}},    {"124m", {12, 768, 12, 1024, 256, false}},
    {"1.5b", {48, 1600, 25, 1024, 256, false}}, {"7b", {32, 4096, 32, 2048, 256, false}},
};

/// One number a block: the list of a parameter, where one stands for all blocks, or `otherwise`.
std::vector<std::int64_t> of_blocks(const sdk::Params& params, const std::string& key, std::int64_t blocks,
                                    std::int64_t otherwise) {
  const auto count = static_cast<std::size_t>(blocks);
  if (!params.has(key)) return std::vector<std::int64_t>(count, otherwise);
  std::vector<std::int64_t> numbers;
  for (const double number : params.numbers(key)) numbers.push_back(static_cast<std::int64_t>(number));
  params.require(numbers.size() == 1 || numbers.size() == count, key,
                 std::to_string(numbers.size()) + " numbers for " + std::to_string(blocks) +
                     " blocks. Give one a block, or one for all.");
  numbers.resize(count, numbers.front());
  return numbers;
}

std::string json_list(const char* key, std::int64_t blocks, const std::string& module, const std::string& more) {
  std::string text = std::string("\"") + key + "\": [";
  for (std::int64_t i = 0; i < blocks; ++i) {
    text += (i == 0 ? "" : ", ") + ("{\"tensor\": \"blocks." + std::to_string(i)) + module + "\", " + more + "}";
  }
  return text + "]";
}

/// Which parameters of the model tell the shapes that pruning leaves.
std::string pruned_shapes(const GptShape& shape) {
  return "{" + json_list("ff", shape.layers, ".mlp.fc.weight", "\"axis\": 0, \"per\": 1") + ", " +
         json_list("kept_heads", shape.layers, ".attn.proj.weight",
                   "\"axis\": 1, \"per\": " + std::to_string(shape.head_size())) +
         "}";
}

std::string fused_layers(const GptShape& shape) {
  std::string text = "{";
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    text += (i == 0 ? "" : ", ") + ("\"blocks." + std::to_string(i)) + ".attn.qkv\": 3";
  }
  return text + "}";
}

/// Causal attention within each document. `parts`: queries, keys and values, [rows, heads, tokens, width]. The result:
/// [1, heads, rows * tokens, width].
at::Tensor attend_by_documents(const std::vector<at::Tensor>& parts, const PackedRows& packed) {
  const auto queries = packed.split(parts[0]), keys = packed.split(parts[1]), values = packed.split(parts[2]);
  std::vector<at::Tensor> documents;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    documents.push_back(at::scaled_dot_product_attention(queries[i], keys[i], values[i], {}, 0.0, /*is_causal=*/true));
  }
  return PackedRows::join(documents);
}

at::Tensor linear_of(torch::nn::Linear& layer, const at::Tensor& hidden, const DecodedTokens& tokens) {
  return tokens.are_single() ? few_rows_linear(hidden, layer->weight, layer->bias) : layer(hidden);
}

torch::nn::LayerNorm layer_norm(std::int64_t d) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({d}).eps(1e-5));
}

}  // namespace

GptShape GptShape::from(const sdk::Params& params) {
  const std::string size = params.text("size");
  const auto named = kSizes.find(size);
  params.require(named != kSizes.end(), "size", "there is no size '" + size + "'");
  GptShape shape = named->second;
  for (const auto& [key, field] :
       std::initializer_list<std::pair<const char*, std::int64_t*>>{{"layers", &shape.layers},
                                                                    {"d", &shape.d},
                                                                    {"heads", &shape.heads},
                                                                    {"seq", &shape.seq},
                                                                    {"vocab", &shape.vocab}}) {
    if (params.has(key)) *field = params.integer(key);
  }
  shape.tied_head = params.has("tied_head") && params.boolean("tied_head");
  params.require(shape.d % shape.heads == 0, "heads",
                 std::to_string(shape.heads) + " heads do not divide d " + std::to_string(shape.d) +
                     ". Choose d as a multiple of heads.");
  shape.ff = of_blocks(params, "ff", shape.layers, 4 * shape.d);
  shape.kept_heads = of_blocks(params, "kept_heads", shape.layers, shape.heads);
  for (const std::int64_t kept : shape.kept_heads) {
    params.require(kept <= shape.heads, "kept_heads",
                   std::to_string(kept) + " of " + std::to_string(shape.heads) + " heads");
  }
  return shape;
}

std::string GptShape::not_held_by(const std::string& format) const {
  const auto differs = [](const std::vector<std::int64_t>& numbers, std::int64_t from) {
    return std::any_of(numbers.begin(), numbers.end(), [&](std::int64_t number) { return number != from; });
  };
  if (differs(kept_heads, heads)) {
    return format +
           " has as many heads in every block as d is wide, and heads were pruned here. Export to safetensors, "
           "which 'capstan eval' runs, or prune rows alone.";
  }
  if (layers > 0 && differs(ff, ff.front())) {
    return format +
           " has one width of all MLPs, and the blocks have different ones. Export to safetensors, which "
           "'capstan eval' runs, or prune the rows of all blocks by one dense_ratio.";
  }
  return "";
}

GptAttention::GptAttention(const GptShape& shape, std::size_t block)
    : block_(block),
      heads_(shape.kept_heads[block]),
      head_size_(shape.head_size()),
      qkv_(register_module("qkv", torch::nn::Linear(shape.d, 3 * heads_ * head_size_))),
      proj_(register_module("proj", torch::nn::Linear(heads_ * head_size_, shape.d))) {}

at::Tensor GptAttention::forward(const at::Tensor& hidden, const PackedRows* packed) {
  const auto batch = hidden.size(0), time = hidden.size(1);
  auto parts = qkv_(hidden).view({batch, time, 3, heads_, head_size_}).permute({2, 0, 3, 1, 4}).unbind(0);
  const auto projected = [&](const at::Tensor& mixed) {
    return proj_(mixed.transpose(1, 2).reshape({batch, time, heads_ * head_size_}));
  };
  if (packed != nullptr) return projected(attend_by_documents(parts, *packed));
  return projected(at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true));
}

at::Tensor GptAttention::decode(const at::Tensor& hidden, const DecodedTokens& tokens, KeyValueCache& cache) {
  const auto rows = hidden.size(0), time = hidden.size(1);
  const auto parts =
      linear_of(qkv_, hidden, tokens).view({rows, time, 3, heads_, head_size_}).permute({2, 0, 3, 1, 4}).unbind(0);
  std::vector<at::Tensor> mixed;
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto of_row = [&](const at::Tensor& all) { return rows == 1 ? all : all.narrow(0, i, 1); };
    const std::int64_t row = tokens.rows[static_cast<std::size_t>(i)], known = cache.tokens(row);
    const auto [keys, values] = cache.extend(block_, row, of_row(parts[1]), of_row(parts[2]));
    std::optional<at::Tensor> mask;
    if (known > 0 && time > 1) mask = at::ones({time, known + time}, hidden.options().dtype(at::kBool)).tril(known);
    mixed.push_back(
        at::scaled_dot_product_attention(of_row(parts[0]), keys, values, mask, 0.0, /*is_causal=*/known == 0));
  }
  const at::Tensor all = mixed.size() == 1 ? mixed.front() : at::cat(mixed);
  return linear_of(proj_, all.transpose(1, 2).reshape({rows, time, heads_ * head_size_}), tokens);
}

GptMlp::GptMlp(const GptShape& shape, std::size_t block)
    : fc_(register_module("fc", torch::nn::Linear(shape.d, shape.ff[block]))),
      proj_(register_module("proj", torch::nn::Linear(shape.ff[block], shape.d))) {}

at::Tensor GptMlp::forward(const at::Tensor& hidden) { return proj_(at::gelu(fc_(hidden), "tanh")); }

at::Tensor GptMlp::decode(const at::Tensor& hidden, const DecodedTokens& tokens) {
  const at::Tensor between =
      by_rows(linear_of(fc_, hidden, tokens), [](const at::Tensor& row) { return at::gelu(row, "tanh"); });
  return linear_of(proj_, between, tokens);
}

GptBlock::GptBlock(const GptShape& shape, std::size_t block)
    : ln1_(register_module("ln1", layer_norm(shape.d))),
      attn_(register_module("attn", std::make_shared<GptAttention>(shape, block))),
      ln2_(register_module("ln2", layer_norm(shape.d))),
      mlp_(register_module("mlp", std::make_shared<GptMlp>(shape, block))) {}

at::Tensor GptBlock::forward(const at::Tensor& hidden, const PackedRows* packed) {
  const auto attended = hidden + attn_->forward(ln1_(hidden), packed);
  return attended + mlp_->forward(ln2_(attended));
}

at::Tensor GptBlock::decode(const at::Tensor& hidden, const DecodedTokens& tokens, KeyValueCache& cache) {
  const auto attended = hidden + attn_->decode(ln1_(hidden), tokens, cache);
  return attended + mlp_->decode(ln2_(attended), tokens);
}

Gpt::Gpt(sdk::Host, const sdk::Params& params)
    : shape_(GptShape::from(params)),
      tok_emb_(register_module("tok_emb", torch::nn::Embedding(shape_.vocab, shape_.d))),
      pos_emb_(register_module("pos_emb", torch::nn::Embedding(shape_.seq, shape_.d))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      ln_f_(register_module("ln_f", layer_norm(shape_.d))) {
  if (!shape_.tied_head) {
    head_ = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(shape_.d, shape_.vocab).bias(false)));
  }
  for (std::size_t i = 0; i < shape_.ff.size(); ++i) blocks_->push_back(std::make_shared<GptBlock>(shape_, i));
  if (params.text("init") == "formula") {
    initialize_formula(named_parameters(), shape_.layers, static_cast<std::uint64_t>(params.integer("init_seed")));
  } else {
    initialize_normal(named_parameters(), shape_.layers);
  }
}

void Gpt::check(const sdk::BatchView& batch) const {
  check_tokens(batch, shape_.seq, shape_.vocab);
  check_packed_rows(batch, shape_.seq);
}

at::Tensor Gpt::packed_block(std::size_t i, const at::Tensor& hidden, const PackedRows& packed) {
  const at::Tensor row = at::arange(hidden.size(1), packed.positions().options()).unsqueeze(0);
  const auto run = [&](const at::Tensor& given, const Arguments& arguments) {
    // A component that drops tokens gives the places in their rows of the tokens that are left.
    const at::Tensor places = arguments.get("position_ids");
    GptBlock& block = blocks_->at<GptBlock>(i);
    if (places.is_same(row)) return block.forward(given, &packed);
    const PackedRows kept = packed.kept(places);
    return block.forward(given, &kept);
  };
  return layer("blocks." + std::to_string(i), hidden, {{"position_ids", row}}, run);
}

at::Tensor Gpt::hidden_states(const sdk::BatchView& batch, const at::Tensor& inputs) {
  const std::optional<PackedRows> packed = read_packed_rows(batch, inputs.sizes());
  at::Tensor hidden =
      tok_emb_(inputs) + (packed ? pos_emb_(packed->positions()) : pos_emb_->weight.narrow(0, 0, inputs.size(1)));
  for (std::size_t i = 0; i < blocks_->size(); ++i) {
    if (packed) {
      hidden = packed_block(i, hidden, *packed);
      continue;
    }
    hidden = layer("blocks." + std::to_string(i), hidden,
                   [&](const at::Tensor& inner) { return blocks_->at<GptBlock>(i).forward(inner); });
  }
  return ln_f_(hidden);
}

at::Tensor Gpt::forward(const sdk::BatchView& batch) {
  const Tokens tokens = read_tokens(batch, shape_.seq);
  return linear_cross_entropy(hidden_states(batch, tokens.inputs), head_weight(), tokens.labels);
}

sdk::NamedOutputs Gpt::outputs(const sdk::BatchView& batch) {
  return {{"logits", at::linear(hidden_states(batch, read_inputs(batch, shape_.seq)), head_weight())}};
}

at::Tensor Gpt::decode(const at::Tensor& ids, Cache& cache) {
  return decoded_logits(ids, cache, shape_.seq, {}, [&](const DecodedTokens& tokens) {
    at::Tensor hidden = tok_emb_(tokens.ids) + pos_emb_(cache.positions(tokens));
    for (std::size_t i = 0; i < blocks_->size(); ++i) hidden = blocks_->at<GptBlock>(i).decode(hidden, tokens, cache);
    return few_rows_linear(ln_f_(hidden.select(1, tokens.count() - 1)), head_weight());
  });
}

std::string Gpt::describe() const {
  return "{\"sequence_length\": " + std::to_string(shape_.seq) + ", \"hidden_size\": " + std::to_string(shape_.d) +
         ", \"vocab_size\": " + std::to_string(shape_.vocab) + ", \"layers\": " + std::to_string(shape_.layers) +
         ", \"heads\": " + std::to_string(shape_.heads) + ", \"positions\": " + std::to_string(shape_.seq) +
         ", \"ragged_decode\": true, " + kReadsPackedRows + ", \"fused\": " + fused_layers(shape_) +
         ", \"pruned_shapes\": " + pruned_shapes(shape_) + ", \"hf\": " + hf_names(shape_) +
         ", \"hf_linear\": " + opt_names(shape_) + ", \"gguf\": " + gguf_names(shape_) + "}";
}

}  // namespace capstan::models

CAPSTAN_PLUGIN(&capstan::sdk::model<capstan::models::Gpt, "gpt">)
