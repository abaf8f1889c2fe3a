{
  # The addon with the CPU backend. It needs only C++20 and node-addon-api. The kernels are compiled once per instruction
  # set, each in a separate library with its own flags, and selected at run time. No other file may use those flags.
  "variables": {
    "openssl_fips": "",
    # zig has its own form of these two flags (native/prebuild.js).
    "neondot_flags%": "-march=armv8.2-a+dotprod",
    "neonbf16_flags%": "-march=armv8.2-a+dotprod+bf16+i8mm"
  },
  "target_defaults": {
    "include_dirs": ["."],
    "cflags_cc!": ["-std=gnu++17", "-fno-exceptions", "-fno-rtti", "-O2"],
    "cflags_cc": ["-std=gnu++20", "-O3", "-Wall", "-Wextra", "-ffp-contract=off", "-fvisibility=hidden"],
    "xcode_settings": {
      "CLANG_CXX_LANGUAGE_STANDARD": "c++20",
      "GCC_ENABLE_CPP_EXCEPTIONS": "YES",
      "OTHER_CPLUSPLUSFLAGS": ["-O3", "-ffp-contract=off", "-fvisibility=hidden"]
    }
  },
  "targets": [
    {
      # GCC needs more than twice the time for -O3.
      "target_name": "kernels_portable",
      "type": "static_library",
      "cflags_cc!": ["-O3"],
      "cflags_cc": ["-O2"],
      "sources": ["native/backend/cpu/kernels_portable.cpp"]
    },
    {
      "target_name": "capstan",
      "dependencies": ["kernels_portable"],
      "defines": [
        "NAPI_VERSION=8",
        "NAPI_CPP_EXCEPTIONS",
        "NODE_ADDON_API_DISABLE_DEPRECATED",
        "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS",
        "CAPSTAN_VERSION=\"<!(node -p \"require('./package.json').version\")\""
      ],
      "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
      "sources": [
        "native/base/machine.cpp",
        "native/base/checksum.cpp",
        "native/base/random.cpp",
        "native/base/sip_hash.cpp",
        "native/base/step_profile.cpp",
        "native/backend/backend.cpp",
        "native/backend/block_format.cpp",
        "native/backend/grouped_tensor.cpp",
        "native/backend/loaded_groups.cpp",
        "native/backend/panel_reader.cpp",
        "native/backend/quant_groups.cpp",
        "native/backend/cuda_library.cpp",
        "native/backend/registry.cpp",
        "<!@(node -p \"require('fs').readdirSync('native/backend/cpu').filter((f) => f.endsWith('.cpp') && !f.startsWith('kernels_')).map((f) => 'native/backend/cpu/' + f).join(' ')\")",
        "native/comm/thread_comm.cpp",
        "native/disk/block_image.cpp",
        "native/disk/block_store.cpp",
        "native/disk/cache_folder.cpp",
        "native/disk/file_digest.cpp",
        "<!@(node -p \"require('fs').readdirSync('native/grammar').filter((f) => f.endsWith('.cpp')).map((f) => 'native/grammar/' + f).join(' ')\")",
        "native/model/adapter_checks.cpp",
        "native/model/adapter_weights.cpp",
        "native/model/checkpoint_files.cpp",
        "native/model/decoder.cpp",
        "native/model/device_model.cpp",
        "native/model/outer_weights.cpp",
        "native/model/recurrent_weights.cpp",
        "native/model/rope.cpp",
        "native/model/spec.cpp",
        "native/model/tensor_checks.cpp",
        "native/model/weights.cpp",
        "native/engine/adapter_loader.cpp",
        "native/engine/banned_ids.cpp",
        "native/engine/block_manager.cpp",
        "native/engine/block_pool.cpp",
        "native/engine/disk_cache.cpp",
        "native/engine/disk_identity.cpp",
        "native/engine/disk_load.cpp",
        "native/engine/draft_loader.cpp",
        "native/engine/drafter.cpp",
        "native/engine/engine.cpp",
        "native/engine/engine_settle.cpp",
        "native/engine/engine_speculate.cpp",
        "native/engine/engine_stats.cpp",
        "native/engine/grammar_drafter.cpp",
        "native/engine/load.cpp",
        "native/engine/make_sequences.cpp",
        "native/engine/mask_gate.cpp",
        "native/engine/mask_pool.cpp",
        "native/engine/mask_queue.cpp",
        "native/engine/memory_plan.cpp",
        "native/engine/model_drafter.cpp",
        "native/engine/model_inputs.cpp",
        "native/engine/model_runner.cpp",
        "native/engine/mtp_drafter.cpp",
        "native/engine/ngram_index.cpp",
        "native/engine/output.cpp",
        "native/engine/pooling.cpp",
        "native/engine/prefix_key.cpp",
        "native/engine/request_checks.cpp",
        "native/engine/sampler.cpp",
        "native/engine/scheduler.cpp",
        "native/engine/state_cache.cpp",
        "native/engine/step_drafter.cpp",
        "native/engine/step_times.cpp",
        "native/engine/thinking.cpp",
        "native/engine/weight_formats.cpp",
        "native/bench/limits.cpp",
        "native/bench/ops.cpp",
        "native/binding/addon.cpp",
        "native/binding/bench_binding.cpp",
        "native/binding/engine_binding.cpp",
        "native/binding/event_batch.cpp",
        "native/binding/file_lock_binding.cpp",
        "native/binding/grammar_binding.cpp",
        "native/binding/memory_binding.cpp",
        "native/binding/parsed_grammars.cpp",
        "native/binding/quantize_binding.cpp",
        "native/binding/load_binding.cpp",
        "native/binding/profile_record.cpp",
        "native/binding/records.cpp",
        "native/binding/spec_record.cpp"
      ],
      "conditions": [
        ["target_arch=='x64'", { "dependencies": ["kernels_avx2", "kernels_avxvnni", "kernels_avx512", "kernels_avx512vnni", "kernels_avx512bf16", "kernels_amx"] }],
        ["target_arch=='arm64'", { "dependencies": ["kernels_neon", "kernels_neondot", "kernels_neonbf16"] }]
      ]
    }
  ],
  "conditions": [
    ["OS=='linux'", {
      "targets": [
        {
          # Runs the replicas of the deployment service. Independent of the addon.
          "target_name": "capstan_sandbox",
          "type": "executable",
          "sources": [
            "native/sandbox/disk_usage.cpp",
            "native/sandbox/disk_watch.cpp",
            "native/sandbox/etc.cpp",
            "native/sandbox/forwarder.cpp",
            "native/sandbox/main.cpp",
            "native/sandbox/memory_usage.cpp",
            "native/sandbox/memory_watch.cpp",
            "native/sandbox/mounts.cpp",
            "native/sandbox/namespaces.cpp",
            "native/sandbox/open_files.cpp",
            "native/sandbox/private_files.cpp",
            "native/sandbox/process_tree.cpp",
            "native/sandbox/redact.cpp",
            "native/sandbox/spec.cpp",
            "native/sandbox/spool.cpp",
            "native/sandbox/system_calls.cpp",
            "native/sandbox/view.cpp",
            "native/sandbox/workload.cpp"
          ]
        }
      ]
    }],
    ["target_arch=='x64'", {
      "targets": [
        {
          "target_name": "kernels_avx2",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_avx2.cpp"],
          "cflags_cc": ["-mavx2", "-mfma", "-mf16c"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["-mavx2", "-mfma", "-mf16c"] }
        },
        {
          "target_name": "kernels_avxvnni",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_avxvnni.cpp"],
          "cflags_cc": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"] }
        },
        {
          "target_name": "kernels_avx512",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_avx512.cpp"],
          "cflags_cc": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"] }
        },
        {
          "target_name": "kernels_avx512vnni",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_avx512vnni.cpp"],
          "cflags_cc": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"] }
        },
        {
          "target_name": "kernels_avx512bf16",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_avx512bf16.cpp"],
          "cflags_cc": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16", "-mfma", "-mf16c"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16", "-mfma", "-mf16c"] }
        },
        {
          # Its AMX instructions are inline assembly and need no flag.
          "target_name": "kernels_amx",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_amx.cpp"],
          "cflags_cc": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16", "-mfma", "-mf16c"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16", "-mfma", "-mf16c"] }
        }
      ]
    }],
    ["target_arch=='arm64'", {
      "targets": [
        {
          "target_name": "kernels_neon",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_neon.cpp"]
        },
        {
          "target_name": "kernels_neondot",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_neondot.cpp"],
          "cflags_cc": ["<(neondot_flags)"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["<(neondot_flags)"] }
        },
        {
          "target_name": "kernels_neonbf16",
          "type": "static_library",
          "sources": ["native/backend/cpu/kernels_neonbf16.cpp"],
          "cflags_cc": ["<(neonbf16_flags)"],
          "xcode_settings": { "OTHER_CPLUSPLUSFLAGS": ["<(neonbf16_flags)"] }
        }
      ]
    }]
  ]
}
