#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "capstan/plugin.h"

/// The layout of every struct that crosses the plugin boundary, a line a field: struct.field, offset, size, type.
namespace capstan {

template <class T>
std::string type_name() {
  const std::string_view whole = __PRETTY_FUNCTION__;
  const auto begin = whole.find("T = ") + 4;
  return std::string(whole.substr(begin, whole.find(';', begin) - begin));
}

inline void print_abi_layout(std::ostream& out) {
#define FIELD(Struct, field)                                                                      \
  out << #Struct "." #field " " << offsetof(Struct, field) << " " << sizeof(Struct::field) << " " \
      << type_name<decltype(Struct::field)>() << "\n"
#define VALUE(enumerator) out << #enumerator " " << static_cast<int>(enumerator) << "\n"

  FIELD(capstan_str, data);
  FIELD(capstan_str, size);
  VALUE(CAPSTAN_OK);
  VALUE(CAPSTAN_FAILED);
  VALUE(CAPSTAN_LOG_DEBUG);
  VALUE(CAPSTAN_LOG_INFO);
  VALUE(CAPSTAN_LOG_WARNING);
  VALUE(CAPSTAN_LOG_ERROR);
  VALUE(CAPSTAN_ROLE_PARAMETER);
  VALUE(CAPSTAN_ROLE_BUFFER);
  VALUE(CAPSTAN_ROLE_GRADIENT);
  VALUE(CAPSTAN_ROLE_MASTER);

  FIELD(capstan_visitor, struct_size);
  FIELD(capstan_visitor, ctx);
  FIELD(capstan_visitor, tensor);
  FIELD(capstan_visitor, module);
  FIELD(capstan_inner, struct_size);
  FIELD(capstan_inner, ctx);
  FIELD(capstan_inner, run);
  FIELD(capstan_argument, struct_size);
  FIELD(capstan_argument, name);
  FIELD(capstan_argument, tensor);
  FIELD(capstan_layer_call, struct_size);
  FIELD(capstan_layer_call, index);
  FIELD(capstan_layer_call, count);
  FIELD(capstan_layer_call, name);
  FIELD(capstan_layer_call, batch);
  FIELD(capstan_layer_call, hidden);
  FIELD(capstan_layer_call, arguments);
  FIELD(capstan_layer_call, argument_count);

  VALUE(CAPSTAN_RECOMPUTE_BEGIN);
  VALUE(CAPSTAN_RECOMPUTE_END);
  VALUE(CAPSTAN_RECOMPUTE_RELEASED);
  FIELD(capstan_recompute, struct_size);
  FIELD(capstan_recompute, joins);
  FIELD(capstan_recompute, stays_open);
  FIELD(capstan_recompute, check);
  FIELD(capstan_recompute, keep);
  FIELD(capstan_recompute, keep_count);
  FIELD(capstan_recompute, ctx);
  FIELD(capstan_recompute, pack);
  FIELD(capstan_recompute, unpack);
  FIELD(capstan_recompute, drop);
  FIELD(capstan_recompute, backward);

  FIELD(capstan_host, struct_size);
  FIELD(capstan_host, abi_major);
  FIELD(capstan_host, abi_minor);
  FIELD(capstan_host, ctx);
  FIELD(capstan_host, set_error);
  FIELD(capstan_host, log);
  FIELD(capstan_host, all_reduce_sum);
  FIELD(capstan_host, all_to_all);
  FIELD(capstan_host, param_norm);
  FIELD(capstan_host, stream);
  FIELD(capstan_host, sink_write);
  FIELD(capstan_host, rank);
  FIELD(capstan_host, world_size);
  FIELD(capstan_host, all_gather);
  FIELD(capstan_host, broadcast);
  FIELD(capstan_host, json_number);
  FIELD(capstan_host, json_text);
  FIELD(capstan_host, json_size);
  FIELD(capstan_host, group_numbers);
  FIELD(capstan_host, batch_tensor);
  FIELD(capstan_host, batch_set_tensor);
  FIELD(capstan_host, batch_number);
  FIELD(capstan_host, batch_set_number);
  FIELD(capstan_host, batch_visit);
  FIELD(capstan_host, layer);
  FIELD(capstan_host, visit_parameters);
  FIELD(capstan_host, split);
  FIELD(capstan_host, json_names);
  FIELD(capstan_host, layer_names);
  FIELD(capstan_host, record);
  FIELD(capstan_host, difficulty);
  FIELD(capstan_host, recompute);
  FIELD(capstan_host, sum_groups);
  FIELD(capstan_host, select_largest);
  FIELD(capstan_host, gather_piece);
  FIELD(capstan_host, tell);
  FIELD(capstan_host, told);
  FIELD(capstan_host, want_curvature);
  FIELD(capstan_host, hessian_vector);
  FIELD(capstan_host, open_tokenizer);
  FIELD(capstan_host, close_tokenizer);
  FIELD(capstan_host, tokenizer_facts);
  FIELD(capstan_host, find_token);
  FIELD(capstan_host, encode_text);
  FIELD(capstan_host, decode_tokens);
  FIELD(capstan_tokenizer_facts, struct_size);
  FIELD(capstan_tokenizer_facts, vocabulary);
  FIELD(capstan_tokenizer_facts, end_token);

  FIELD(capstan_slot, struct_size);
  FIELD(capstan_slot, group);
  FIELD(capstan_slot, name);
  FIELD(capstan_slot, param);
  FIELD(capstan_slot, grad);
  FIELD(capstan_slot, state);
  FIELD(capstan_slot, offset);
  FIELD(capstan_slot, numel);
  FIELD(capstan_slot, full_numel);
  FIELD(capstan_slot, full_shape);
  FIELD(capstan_slot, full_dims);
  FIELD(capstan_slot, compute);
  FIELD(capstan_slot, compute_written);
  FIELD(capstan_slot, state_count);
  FIELD(capstan_slot, role);
  FIELD(capstan_slot, grad_rows);
  FIELD(capstan_slot, grad_row_count);

  FIELD(capstan_step, struct_size);
  FIELD(capstan_step, update_index);
  FIELD(capstan_step, grad_scale);
  FIELD(capstan_step, groups);
  FIELD(capstan_step, group_count);
  FIELD(capstan_step, model_state);
  FIELD(capstan_step, model_state_count);
  FIELD(capstan_step, model_totals);

  FIELD(capstan_optimizer, struct_size);
  FIELD(capstan_optimizer, update);
  FIELD(capstan_optimizer, measure);
  FIELD(capstan_optimizer, gradient_mode);
  FIELD(capstan_optimizer, synchronize);
  FIELD(capstan_optimizer, save);
  FIELD(capstan_optimizer, load);
  FIELD(capstan_optimizer, synchronize_step);
  FIELD(capstan_optimizer, measure_model);

  FIELD(capstan_schedule_start, struct_size);
  FIELD(capstan_schedule_start, group_count);
  FIELD(capstan_schedule_start, base_lrs);
  FIELD(capstan_schedule_start, optimizer_has_betas);
  FIELD(capstan_schedule_start, betas);
  FIELD(capstan_scheduler, struct_size);
  FIELD(capstan_scheduler, rate);
  FIELD(capstan_scheduler, momentum);
  FIELD(capstan_scheduler, start);
  FIELD(capstan_scheduler, save);
  FIELD(capstan_scheduler, load);

  FIELD(capstan_metric, struct_size);
  FIELD(capstan_metric, tag);
  FIELD(capstan_metric, value);
  FIELD(capstan_metric, x);
  FIELD(capstan_metric, wall_time);
  FIELD(capstan_text, struct_size);
  FIELD(capstan_text, tag);
  FIELD(capstan_text, prompt);
  FIELD(capstan_text, text);
  FIELD(capstan_text, step);
  FIELD(capstan_text, x);
  FIELD(capstan_text, wall_time);
  FIELD(capstan_monitor, struct_size);
  FIELD(capstan_monitor, open);
  FIELD(capstan_monitor, write);
  FIELD(capstan_monitor, flush);
  FIELD(capstan_monitor, close);
  FIELD(capstan_monitor, text);

  FIELD(capstan_model, struct_size);
  FIELD(capstan_model, visit);
  FIELD(capstan_model, forward);
  FIELD(capstan_model, training);
  FIELD(capstan_model, describe);
  FIELD(capstan_model, check);
  FIELD(capstan_model, outputs);
  FIELD(capstan_model, begin_decode);
  FIELD(capstan_model, decode);
  FIELD(capstan_model, end_decode);

  VALUE(CAPSTAN_EVENT_INITIALIZED);
  VALUE(CAPSTAN_EVENT_STEP_BEGIN);
  VALUE(CAPSTAN_EVENT_FORWARD_BEGIN);
  VALUE(CAPSTAN_EVENT_FORWARD_END);
  VALUE(CAPSTAN_EVENT_BACKWARD_BEGIN);
  VALUE(CAPSTAN_EVENT_BACKWARD_END);
  VALUE(CAPSTAN_EVENT_UPDATE_BEGIN);
  VALUE(CAPSTAN_EVENT_UPDATE_END);
  VALUE(CAPSTAN_EVENT_STEP_END);
  VALUE(CAPSTAN_EVENT_EVAL_BEGIN);
  VALUE(CAPSTAN_EVENT_EVAL_END);
  VALUE(CAPSTAN_EVENT_SAVE_BEGIN);
  VALUE(CAPSTAN_EVENT_SAVE_END);
  VALUE(CAPSTAN_EVENT_LOADED);
  VALUE(CAPSTAN_EVENT_CLOSING);
  FIELD(capstan_event, struct_size);
  FIELD(capstan_event, kind);
  FIELD(capstan_event, global_step);
  FIELD(capstan_event, update_index);
  FIELD(capstan_event, micro_step);
  FIELD(capstan_event, global_samples);
  FIELD(capstan_event, grad_norm);
  FIELD(capstan_event, loss);
  FIELD(capstan_event, skipped);
  FIELD(capstan_observer, struct_size);
  FIELD(capstan_observer, event);
  FIELD(capstan_observer, layer);
  FIELD(capstan_observer, batch);
  FIELD(capstan_observer, save);
  FIELD(capstan_observer, load);

  FIELD(capstan_offload, struct_size);
  FIELD(capstan_offload, register_buffer);
  FIELD(capstan_offload, stats);
  FIELD(capstan_offload, facts);
  FIELD(capstan_offload, lend);
  FIELD(capstan_offload, take_back);
  FIELD(capstan_offload, start);
  FIELD(capstan_offload, poll);
  FIELD(capstan_offload, fault);
  FIELD(capstan_offload, release_buffer);

  FIELD(capstan_range, struct_size);
  FIELD(capstan_range, write);
  FIELD(capstan_range, buffer_id);
  FIELD(capstan_range, offset);
  FIELD(capstan_range, bytes);
  FIELD(capstan_range, memory);

  FIELD(capstan_offload_facts, struct_size);
  FIELD(capstan_offload_facts, alignment);
  FIELD(capstan_offload_facts, in_flight_bytes);
  FIELD(capstan_offload_facts, free_bytes);

  FIELD(capstan_offload_fault, struct_size);
  FIELD(capstan_offload_fault, error);
  FIELD(capstan_offload_fault, write);
  FIELD(capstan_offload_fault, buffer_id);
  FIELD(capstan_offload_fault, offset);
  FIELD(capstan_offload_fault, bytes);
  FIELD(capstan_offload_fault, done);

  FIELD(capstan_compressed, struct_size);
  FIELD(capstan_compressed, full_dims);
  FIELD(capstan_compressed, name);
  FIELD(capstan_compressed, full_shape);
  FIELD(capstan_compressed, offset);
  FIELD(capstan_compressed, numel);
  FIELD(capstan_compressed, full_numel);
  FIELD(capstan_compressed, groups);
  FIELD(capstan_compressed, input);
  FIELD(capstan_compressed, statistics);
  FIELD(capstan_compressed, states);
  FIELD(capstan_compressed, state_count);
  FIELD(capstan_compressed, master);
  FIELD(capstan_compressed, grad);
  FIELD(capstan_compressed, grad_scale);
  FIELD(capstan_compressed, state_grads);
  FIELD(capstan_compression, struct_size);
  FIELD(capstan_compression, plan);
  FIELD(capstan_compression, active);
  FIELD(capstan_compression, measure);
  FIELD(capstan_compression, transform);
  FIELD(capstan_compression, encode);
  FIELD(capstan_compression, operand);
  FIELD(capstan_compression, settle);
  FIELD(capstan_compression, save);
  FIELD(capstan_compression, load);
  FIELD(capstan_compression, prepare);
  FIELD(capstan_compression, gradient);
  FIELD(capstan_compression, before_update);
  FIELD(capstan_compression, keep);
  FIELD(capstan_compression, code_bits);

  FIELD(capstan_data_source, struct_size);
  FIELD(capstan_data_source, paths);
  FIELD(capstan_data_source, path_count);
  FIELD(capstan_data_source, sequence_length);
  FIELD(capstan_data_source, vocabulary);

  FIELD(capstan_dataset, struct_size);
  FIELD(capstan_dataset, open);
  FIELD(capstan_dataset, describe);
  FIELD(capstan_dataset, read);

  FIELD(capstan_sampling, struct_size);
  FIELD(capstan_sampling, samples);
  FIELD(capstan_sampling, batch);
  FIELD(capstan_sampling, seed);
  FIELD(capstan_sampling, fingerprint);

  FIELD(capstan_sampler, struct_size);
  FIELD(capstan_sampler, start);
  FIELD(capstan_sampler, next);
  FIELD(capstan_sampler, batch);
  FIELD(capstan_sampler, save);
  FIELD(capstan_sampler, load);

  FIELD(capstan_sample_metric, struct_size);
  FIELD(capstan_sample_metric, start);
  FIELD(capstan_sample_metric, totals);
  FIELD(capstan_sample_metric, measure);

  FIELD(capstan_pacing, struct_size);
  FIELD(capstan_pacing, difficulty);

  FIELD(capstan_attention_facts, struct_size);
  FIELD(capstan_attention_facts, block);
  FIELD(capstan_attention_facts, causal);
  FIELD(capstan_attention_shape, struct_size);
  FIELD(capstan_attention_shape, heads);
  FIELD(capstan_attention_shape, blocks);
  FIELD(capstan_attention_shape, seed);
  FIELD(capstan_attention_layout, struct_size);
  FIELD(capstan_attention_layout, heads);
  FIELD(capstan_attention_layout, block);
  FIELD(capstan_attention_layout, blocks);
  FIELD(capstan_attention_layout, causal);
  FIELD(capstan_attention_layout, cells);
  FIELD(capstan_attention_term, struct_size);
  FIELD(capstan_attention_term, mask);
  FIELD(capstan_attention_term, values);
  FIELD(capstan_attention_term, grad);
  FIELD(capstan_attention_call, struct_size);
  FIELD(capstan_attention_call, scale);
  FIELD(capstan_attention_call, q);
  FIELD(capstan_attention_call, k);
  FIELD(capstan_attention_call, v);
  FIELD(capstan_attention_call, terms);
  FIELD(capstan_attention_call, term_count);
  FIELD(capstan_attention, struct_size);
  FIELD(capstan_attention, facts);
  FIELD(capstan_attention, layout);
  FIELD(capstan_attention, prepare);
  FIELD(capstan_attention, release);
  FIELD(capstan_attention, forward);
  FIELD(capstan_attention, backward);

  FIELD(capstan_tuning_space, struct_size);
  FIELD(capstan_tuning_space, point_count);
  FIELD(capstan_tuning_space, feature_count);
  FIELD(capstan_tuning_space, points);
  FIELD(capstan_tuning_space, features);
  FIELD(capstan_tuning_space, values);
  FIELD(capstan_tuning_space, budget);
  FIELD(capstan_tuning_space, seed);
  FIELD(capstan_tuning_result, struct_size);
  FIELD(capstan_tuning_result, measured);
  FIELD(capstan_tuning_result, point);
  FIELD(capstan_tuning_result, cost);
  FIELD(capstan_tuner, struct_size);
  FIELD(capstan_tuner, start);
  FIELD(capstan_tuner, ask);
  FIELD(capstan_tuner, tell);
  FIELD(capstan_tuner, save);
  FIELD(capstan_tuner, load);

  FIELD(capstan_message, struct_size);
  FIELD(capstan_message, peer);
  FIELD(capstan_message, values);
  FIELD(capstan_device_memory, struct_size);
  FIELD(capstan_device_memory, in_use);
  FIELD(capstan_device_memory, peak);
  FIELD(capstan_device_memory, total);
  FIELD(capstan_accelerator, struct_size);
  FIELD(capstan_accelerator, count);
  FIELD(capstan_accelerator, open);
  FIELD(capstan_accelerator, stream);
  FIELD(capstan_accelerator, memory);
  FIELD(capstan_accelerator, record);
  FIELD(capstan_accelerator, elapsed);
  FIELD(capstan_accelerator, forget);
  FIELD(capstan_accelerator, link_id);
  FIELD(capstan_accelerator, connect);
  FIELD(capstan_accelerator, disconnect);
  FIELD(capstan_accelerator, exchange);
  FIELD(capstan_accelerator, wait);
  FIELD(capstan_accelerator, abort);
  FIELD(capstan_accelerator, end);
  FIELD(capstan_accelerator, bind_thread);
  FIELD(capstan_accelerator, upload);
  FIELD(capstan_accelerator, connect_unless);
  FIELD(capstan_accelerator, exchange_milliseconds);

  FIELD(capstan_component, struct_size);
  FIELD(capstan_component, kind);
  FIELD(capstan_component, type);
  FIELD(capstan_component, create);
  FIELD(capstan_component, destroy);
  FIELD(capstan_component, vtable);
  FIELD(capstan_plugin, struct_size);
  FIELD(capstan_plugin, abi_major);
  FIELD(capstan_plugin, abi_minor);
  FIELD(capstan_plugin, manifest);
  FIELD(capstan_plugin, components);
  FIELD(capstan_plugin, component_count);
#undef FIELD
#undef VALUE
}

}  // namespace capstan
