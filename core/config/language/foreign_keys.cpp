#include "core/config/language/foreign_keys.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace capstan {
namespace {

using Keys = std::string_view[];

// All with '_' between their words; '-' is read as '_'.
// clang-format off
constexpr Keys kTransformers = {
    "adafactor", "adam_beta1", "adam_beta2", "adam_epsilon", "auto_find_batch_size", "average_tokens_across_devices",
    "bf16_full_eval", "data_seed", "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory",
    "dataloader_prefetch_factor", "ddp_backend", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_timeout",
    "disable_tqdm", "do_eval", "do_predict", "do_train", "eval_accumulation_steps", "eval_delay", "eval_steps",
    "eval_strategy", "evaluation_strategy", "fp16_backend", "fp16_full_eval", "fp16_opt_level", "fsdp", "fsdp_config",
    "full_determinism", "gradient_checkpointing", "gradient_checkpointing_kwargs", "greater_is_better",
    "group_by_length", "half_precision_backend", "hub_model_id", "hub_strategy", "hub_token", "ignore_data_skip",
    "include_inputs_for_metrics", "label_names", "label_smoothing_factor", "learning_rate", "length_column_name",
    "load_best_model_at_end", "local_rank", "log_level_replica", "log_on_each_node", "logging_dir",
    "logging_first_step", "logging_nan_inf_filter", "logging_steps", "logging_strategy", "lr_scheduler_kwargs",
    "lr_scheduler_type", "max_grad_norm", "max_seq_length", "max_steps", "metric_for_best_model",
    "neftune_noise_alpha", "no_cuda", "num_train_epochs", "optim", "optim_args", "optim_target_modules", "output_dir",
    "overwrite_output_dir", "past_index", "per_device_eval_batch_size", "per_device_train_batch_size",
    "prediction_loss_only", "push_to_hub", "remove_unused_columns", "report_to", "restore_callback_states_from_checkpoint",
    "resume_from_checkpoint", "run_name", "save_on_each_node", "save_only_model", "save_safetensors", "save_steps",
    "save_strategy", "save_total_limit", "seed", "skip_memory_metrics", "tf32", "torch_compile",
    "torch_compile_backend", "torch_compile_mode", "torch_empty_cache_steps", "use_cpu", "use_legacy_prediction_loop",
    "use_liger_kernel", "use_mps_device", "warmup_ratio", "warmup_steps", "weight_decay"};

constexpr Keys kAccelerate = {
    "compute_environment", "debug", "deepspeed_config", "deepspeed_config_file", "deepspeed_exclusion_filter",
    "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names",
    "deepspeed_multinode_launcher", "distributed_type", "downcast_bf16", "dynamo_backend", "dynamo_config",
    "enable_cpu_affinity", "fp8_config", "fsdp_config", "gpu_ids", "gradient_accumulation_plugin", "machine_rank",
    "main_process_ip", "main_process_port", "main_training_function", "megatron_lm_config", "mixed_precision",
    "mpirun_config", "num_machines", "num_processes", "offload_optimizer_device", "offload_optimizer_nvme_path",
    "offload_param_device", "offload_param_nvme_path", "rdzv_backend", "same_network", "split_batches", "tpu_env",
    "tpu_use_cluster", "tpu_use_sudo", "use_cpu", "zero3_init_flag", "zero3_save_16bit_model", "zero_stage"};

constexpr Keys kMegatron = {
    "adam_beta1", "adam_beta2", "adam_eps", "add_bias_linear", "apply_query_key_layer_scaling", "attention_dropout",
    "attention_softmax_in_fp32", "bias_dropout_fusion", "checkpoint_activations", "checkpoint_num_layers", "clip_grad",
    "create_moe_param_group", "data_impl", "data_path", "data_parallel_size", "deepspeed_activation_checkpointing",
    "distributed_backend", "distributed_timeout_minutes", "ds_pipeline_enabled", "embedding_path", "encoder_num_layers",
    "encoder_seq_length", "eval_interval", "eval_iters", "exit_duration_in_mins", "exit_interval", "ffn_hidden_size",
    "finetune", "fp32_residual_connection", "global_batch_size", "hidden_dropout", "hidden_size",
    "init_method_std", "kv_channels", "layernorm_epsilon", "load", "log_batch_size_to_tensorboard", "log_interval",
    "log_timers_to_tensorboard", "loss_scale", "lr", "lr_decay_iters", "lr_decay_samples", "lr_decay_style",
    "lr_decay_tokens", "lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_tokens",
    "make_vocab_size_divisible_by", "masked_softmax_fusion", "max_position_embeddings", "merge_file",
    "micro_batch_size", "min_lr", "mlp_type", "mmap_warmup", "moe_eval_capacity_factor", "moe_loss_coeff",
    "moe_min_capacity", "moe_train_capacity_factor", "no_pipeline_parallel", "normalization", "num_attention_heads",
    "num_experts", "num_key_value_heads", "num_layers", "num_workers", "override_opt_param_scheduler",
    "partition_activations", "pipeline_model_parallel_size", "position_embedding_type", "rampup_batch_size",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "rotary_percent", "save", "save_interval",
    "seed", "seq_length", "sequence_parallel", "split", "swiglu", "synchronize_each_layer", "tensor_model_parallel_size",
    "tensorboard_dir", "tensorboard_log_interval", "tokenizer_model", "tokenizer_type", "topk", "train_data_exact_num_epochs",
    "train_iters", "train_samples", "train_tokens", "untie_embeddings_and_output_weights", "use_flash_attn",
    "use_rotary_position_embeddings", "vocab_file", "weight_decay", "zero_stage"};

constexpr Keys kNeox = {
    "activation", "allow_chopped", "autotuning_config", "autotuning_run", "apply_query_key_layer_scaling", "attention_config", "attention_dropout",
    "attention_softmax_in_fp32", "bias_dropout_fusion", "bias_gelu_fusion", "checkpoint_activations",
    "checkpoint_factor", "checkpoint_in_cpu", "checkpoint_num_layers", "checkpoint_scale", "checkpoint_validation_with_forward_pass",
    "comet_experiment_name", "comet_others", "comet_project", "comet_tags", "comet_workspace", "contiguous_checkpointing",
    "data_impl", "data_path", "deepspeed", "deepspeed_activation_checkpointing", "deepspeed_extra_args", "deepspeed_mpi", "deepspeed_slurm", "distributed_backend", "eval_interval", "eval_iters",
    "extra_save_iters", "finetune", "gas", "gpt_j_residual", "hidden_dropout", "hidden_size", "hostfile",
    "include", "init_method", "iteration", "keep_last_n_checkpoints", "launcher", "layernorm_epsilon", "load", "log_dir",
    "log_interval", "lr_decay_iters", "lr_decay_style", "make_vocab_size_divisible_by", "max_position_embeddings",
    "merge_file", "min_lr", "model_parallel_size", "no_ssh_check", "no_weight_tying", "norm", "num_attention_heads", "num_kv_heads",
    "num_layers", "num_workers", "output_layer_init_method", "output_layer_parallelism", "partition_activations",
    "pipe_parallel_size", "pos_emb", "precision", "rms_norm_epsilon", "rotary_emb_base", "rotary_ndims", "rotary_pct", "save",
    "save_interval", "sequence_parallel", "scaled_masked_softmax_fusion", "scaled_upper_triang_masked_softmax_fusion", "seq_length",
    "split", "synchronize_each_layer", "tensorboard_dir", "test_data_paths", "tokenizer_type", "train_data_paths",
    "train_iters", "use_bnb_optimizer", "use_wandb", "valid_data_paths", "vocab_file", "wandb_group", "wandb_host", "wandb_project",
    "wandb_team", "use_comet", "warmup", "weight_by_num_documents", "weight_decay", "weighted_sampler_alpha"};

constexpr Keys kLlamaFactory = {
    "additional_target", "booster", "cutoff_len", "dataset", "dataset_dir", "double_quantization", "eval_dataset", "finetuning_type",
    "flash_attn", "freeze_trainable_layers", "freeze_vision_tower", "galore_rank", "infer_backend", "loraplus_lr_ratio", "lora_alpha",
    "lora_dropout", "lora_rank", "lora_target", "max_samples", "model_name_or_path", "overwrite_cache", "plot_loss",
    "pref_beta", "pref_loss", "preprocessing_num_workers", "quantization_bit", "quantization_method", "ray_run_name",
    "reward_model", "rope_scaling", "shift_attn", "template", "tokenized_path", "train_on_prompt",
    "trust_remote_code", "upcast_layernorm", "use_dora", "use_galore", "use_rslora", "use_unsloth", "val_size"};

constexpr Keys kAxolotl = {
    "adapter", "base_model", "base_model_config", "chat_template", "dataset_prepared_path", "datasets",
    "early_stopping_patience", "eval_sample_packing", "eval_table_size", "evals_per_epoch", "flash_attention", "gptq",
    "is_llama_derived_model", "load_in_4bit", "load_in_8bit", "lora_alpha", "lora_dropout", "lora_fan_in_fan_out",
    "lora_model_dir", "lora_modules_to_save", "lora_r", "lora_target_linear", "lora_target_modules", "lr_scheduler",
    "micro_batch_size", "model_type", "num_epochs", "optimizer_betas", "pad_to_sequence_len", "peft_layers_to_transform", "push_dataset_to_hub",
    "resume_from_checkpoint", "rl", "sample_packing", "saves_per_epoch", "sdp_attention", "sequence_len",
    "special_tokens", "strict", "test_datasets", "tokenizer_type", "train_on_inputs", "unfrozen_parameters",
    "val_set_size", "wandb_entity", "wandb_log_model", "wandb_name", "wandb_project", "wandb_run_id", "wandb_watch",
    "xformers_attention"};

constexpr Keys kLauncher = {
    "backend", "bind_cores_to_rank", "dist_backend", "dist_url", "enable_each_rank_log", "exclude", "force_multi",
    "hostfile", "include", "init_method", "launcher", "launcher_args", "local_rank", "local_world_size", "master_addr",
    "master_port", "max_restarts", "nnodes", "no_local_rank", "node_rank", "nproc_per_node", "num_gpus", "num_nodes", "rank",
    "rdzv_backend", "rdzv_endpoint", "rdzv_id", "ssh_port", "world_size"};

constexpr Keys kInference = {
    "attn_dropout_checkpoint", "base_dir", "checkpoint_dict", "deepspeed_transformer", "ds_inference", "dtype", "enable_cuda_graph", "ep_size", "gelu_checkpoint", "inference", "inference_config", "injection_policy",
    "injection_policy_tuple", "kernel_inject", "max_batch_size", "max_out_tokens", "max_tokens", "min_out_tokens", "moe_experts", "mp_size", "mpu",
    "normalize_invertible", "replace_method", "replace_with_kernel_inject", "return_tuple", "save_mp_checkpoint_path", "set_empty_params", "stochastic_mode", "stochastic_transformer",
    "training_mp_size", "transformer_kernel", "transposed_mode", "triangular_masking", "use_triton"};

constexpr const char* kGiveDeepSpeed = "Give the configuration of DeepSpeed that it names, if any.";
constexpr ForeignProgram kPrograms[] = {
    {"the transformers Trainer", kGiveDeepSpeed, kTransformers},
    {"Hugging Face accelerate",
     "Give the file that its deepspeed_config_file names, or write one with what its deepspeed_config says.",
     kAccelerate},
    {"GPT-NeoX", "Give a file of DeepSpeed's keys.", kNeox},
    {"Megatron-DeepSpeed", "Give the file that its --deepspeed_config names.", kMegatron},
    {"LLaMA-Factory", kGiveDeepSpeed, kLlamaFactory},
    {"axolotl", kGiveDeepSpeed, kAxolotl},
    {"a launcher", "Give a file of DeepSpeed's keys.", kLauncher},
    {"DeepSpeed's kernels for layers and for inference", "Capstan trains; it has no use for these keys.", kInference},
};

/// Another program's option, and the key that does the same here.
constexpr std::pair<std::string_view, std::string_view> kHere[] = {
    {"adam_beta1", "optimizer.params.betas"}, {"adam_beta2", "optimizer.params.betas"},
    {"adam_eps", "optimizer.params.eps"}, {"adam_epsilon", "optimizer.params.eps"},
    {"batch_size", "train_micro_batch_size_per_gpu"},
    {"clip_grad", "gradient_clipping"}, {"data_path", "capstan.data.path"},
    {"dtype", "bf16.enabled"}, {"early_stopping_patience", "capstan.run.patience"}, {"epochs", "capstan.run.steps"},
    {"eval_interval", "capstan.run.eval_every"}, {"eval_steps", "capstan.run.eval_every"},
    {"gas", "gradient_accumulation_steps"}, {"global_batch_size", "train_batch_size"},
    {"grad_accum", "gradient_accumulation_steps"}, {"learning_rate", "optimizer.params.lr"}, {"log_interval", "steps_per_print"},
    {"load_best_model_at_end", "capstan.run.keep_best"}, {"logging_dir", "tensorboard.output_path"},
    {"logging_steps", "steps_per_print"}, {"lr", "optimizer.params.lr"},
    {"lr_decay_style", "scheduler.type"}, {"lr_scheduler", "scheduler.type"}, {"lr_scheduler_type", "scheduler.type"},
    {"max_grad_norm", "gradient_clipping"},
    {"max_seq_length", "capstan.data.sequence_length"}, {"max_steps", "capstan.run.steps"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"}, {"mixed_precision", "bf16.enabled"},
    {"num_epochs", "capstan.run.steps"}, {"num_train_epochs", "capstan.run.steps"},
    {"offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"offload_param_device", "zero_optimization.offload_param.device"}, {"optim", "optimizer.type"},
    {"output_dir", "capstan.run.save_dir"}, {"overwrite_output_dir", "capstan.run.overwrite"},
    {"precision", "bf16.enabled"}, {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"save", "capstan.run.save_dir"}, {"save_interval", "capstan.run.save_every"},
    {"save_steps", "capstan.run.save_every"}, {"save_total_limit", "capstan.run.keep"}, {"seed", "capstan.run.seed"},
    {"seq_length", "capstan.data.sequence_length"}, {"sequence_len", "capstan.data.sequence_length"},
    {"tensorboard_dir", "tensorboard.output_path"}, {"train_data_paths", "capstan.data.path"},
    {"train_iters", "capstan.run.steps"}, {"valid_data_paths", "capstan.data.eval_path"},
    {"wandb_entity", "wandb.team"}, {"wandb_project", "wandb.project"}, {"wandb_team", "wandb.team"},
    {"warmup_steps", "scheduler.params.warmup_num_steps"}, {"weight_decay", "optimizer.params.weight_decay"},
    {"zero_stage", "zero_optimization.stage"},
};
// clang-format on

std::string underscored(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace

bool ForeignProgram::has(std::string_view key) const {
  return std::find(keys.begin(), keys.end(), underscored(key)) != keys.end();
}

std::span<const ForeignProgram> foreign_programs() { return kPrograms; }

std::string_view foreign_key_here(std::string_view key) {
  const std::string name = underscored(key);
  for (const auto& [option, here] : kHere) {
    if (option == name) return here;
  }
  return "";
}

std::vector<std::string_view> foreign_equivalents() {
  std::vector<std::string_view> paths;
  for (const auto& [option, here] : kHere) paths.push_back(here);
  return paths;
}

}  // namespace capstan
