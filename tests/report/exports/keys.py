"""Keys of tools that cannot be installed beside this transformers, copied from their source.

AXOLOTL: axolotl-ai-cloud/axolotl, classes AxolotlInputConfig (src/axolotl/utils/schemas/config.py, with
attn_implementation and experts_implementation), HyperparametersConfig (training.py at 002a637c), LoraConfig (peft.py at
00564c8f) and, with its plugin, LigerArgs (src/axolotl/integrations/liger/args.py). FSDP: FSDPConfig (fsdp.py at
06dcd85d). LLAMA_FACTORY: hiyouga/LLaMA-Factory, BaseModelArguments and QuantizationArguments
(src/llamafactory/hparams/model_args.py at 00577a85), LoraArguments and FinetuningArguments (finetuning_args.py),
cutoff_len of data_args.py; its training arguments are `Seq2SeqTrainingArguments` (training_args.py at 00577a85).
Only what has to do with speed and memory is listed.
"""

AXOLOTL = {
    *("gradient_accumulation_steps", "micro_batch_size", "batch_size", "eval_batch_size", "auto_find_batch_size"),
    *("group_by_length", "learning_rate", "weight_decay", "optimizer", "optim_args", "optim_target_modules"),
    *("lr_scheduler", "lr_scheduler_kwargs", "adam_epsilon", "adam_beta1", "adam_beta2", "max_grad_norm", "num_epochs"),
    *("dataloader_pin_memory", "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_drop_last"),
    *("accelerator_config", "remove_unused_columns", "seed", "ddp_timeout", "ddp_bucket_cap_mb"),
    *("ddp_broadcast_buffers", "ddp_find_unused_parameters", "metric_for_best_model", "greater_is_better"),
    *("bf16", "fp16", "fp8", "tf32", "bfloat16", "float16", "float32"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_offloading", "sequence_len"),
    *("sample_packing", "pad_to_sequence_len", "batch_flattening", "xformers_attention", "sdp_attention"),
    *("flex_attention", "flash_attention", "eager_attention", "attn_implementation", "experts_implementation"),
    *("deepspeed", "fsdp_config", "fsdp_version", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *("max_steps", "warmup_steps", "warmup_ratio", "eval_steps", "eval_strategy", "save_steps", "save_strategy"),
    *("save_total_limit", "logging_steps", "load_best_model_at_end", "save_only_model", "neftune_noise_alpha"),
    *("plugins", "load_in_8bit", "load_in_4bit", "adapter", "lora_r", "lora_alpha", "lora_dropout"),
    *("lora_target_modules", "lora_target_linear", "bnb_config_kwargs"),
    *("liger_rope", "liger_rms_norm", "liger_layer_norm", "liger_glu_activation", "liger_cross_entropy"),
    "liger_fused_linear_cross_entropy",
}
FSDP = {
    *("fsdp_version", "activation_checkpointing", "offload_params", "cpu_ram_efficient_loading"),
    *("cpu_offload_pin_memory", "state_dict_type", "final_state_dict_type", "auto_wrap_policy"),
    *("transformer_layer_cls_to_wrap", "min_num_params", "reshard_after_forward", "mixed_precision_policy"),
}
LLAMA_FACTORY = {
    *("flash_attn", "shift_attn", "use_unsloth", "use_unsloth_gc", "enable_liger_kernel"),
    *("disable_gradient_checkpointing", "use_reentrant_gc", "upcast_layernorm", "upcast_lmhead_output"),
    *("quantization_method", "quantization_bit", "quantization_type", "double_quantization", "fp8", "fp8_backend"),
    *("finetuning_type", "pure_bf16", "lora_rank", "lora_alpha", "lora_dropout", "lora_target", "cutoff_len"),
}
LLAMA_FACTORY_ATTENTION = {"auto", "disabled", "sdpa", "fa2", "fa3"}
